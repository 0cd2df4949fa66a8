"""Compare the input and output of each layer of an encoder (Lan et al. 2020, figure 2)."""

import dataclasses
import importlib.util
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float64

from bertjax.errors import UserError
from bertjax.inference.features import FeatureExtractor, extract
from bertjax.io import storage

SUFFIXES = (".png", ".svg", ".pdf")


@dataclasses.dataclass(frozen=True)
class LayerChanges:
    """Difference between the input and the output of each layer, as means over tokens.

    Attributes:
      distance: L2 distance.
      cosine: Cosine similarity.
      tokens: Number of tokens.
    """

    distance: Float64[np.ndarray, " N"]
    cosine: Float64[np.ndarray, " N"]
    tokens: int


def measure(
    extractor: FeatureExtractor, texts: Iterable[str], source: str, *, batch_size: int = 64
) -> LayerChanges:
    """Compares the input and output of each layer on texts.

    Args:
      extractor: Of all layers, in order, without pooling.
      texts: Texts.
      source: Name of the texts in errors.
      batch_size: Number of texts per batch.

    Raises:
      UserError: the texts have no token.
    """
    distance = np.zeros(len(extractor.layers) - 1)
    cosine, tokens = np.zeros_like(distance), 0
    for _, features in extract(extractor, texts, source, batch_size=batch_size):
        before, after = features[:, :-1].astype(np.float64), features[:, 1:].astype(np.float64)
        distance += np.linalg.norm(after - before, axis=-1).sum(axis=0)
        norms = np.linalg.norm(before, axis=-1) * np.linalg.norm(after, axis=-1)
        products = (before * after).sum(axis=-1)
        cosine += np.divide(products, norms, where=norms > 0, out=norms * 0).sum(axis=0)
        tokens += len(features)
    if not tokens:
        raise UserError(f"{source} has no text; expected one text per line")
    return LayerChanges(distance / tokens, cosine / tokens, tokens)


def check_plot(path: pathlib.Path) -> None:
    """Checks that a plot can be written to a file.

    Raises:
      UserError: the format is unknown, the file cannot be written, or matplotlib is missing.
    """
    if path.suffix not in SUFFIXES:
        raise UserError(f"plot: got {path}, expected a file name with {', '.join(SUFFIXES)}")
    storage.check_file(path)
    check_matplotlib()


def check_matplotlib() -> None:
    """Checks that matplotlib is installed.

    Raises:
      UserError: matplotlib is missing.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("plots require matplotlib: pip install 'bertjax[report]', or omit the plot")


def plot(path: pathlib.Path, changes: Sequence[tuple[str, LayerChanges]]) -> None:
    """Plots both measures over the layers, with one line per run.

    Args:
      path: Output file, with one of SUFFIXES.
      changes: Name and result of each run.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, found in changes:
        layers = np.arange(1, len(found.distance) + 1)
        left.plot(layers, found.distance, marker="o", markersize=4, label=name)
        right.plot(layers, found.cosine, marker="o", markersize=4, label=name)
    left.set_ylabel("L2 distance of input and output")
    right.set_ylabel("cosine of input and output")
    for axes in (left, right):
        axes.set_xlabel("layer")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
    left.set_ylim(bottom=0)
    right.legend()
    figure.savefig(path, dpi=150)
