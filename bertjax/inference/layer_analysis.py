"""Compare the input and output of each layer of an encoder (Lan et al. 2020, figure 2)."""

import dataclasses
import importlib.util
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float64

from bertjax.errors import UserError
from bertjax.inference.features import Encoding, extract
from bertjax.io import storage

SUFFIXES = (".png", ".svg", ".pdf")


@dataclasses.dataclass(frozen=True)
class Changes:
    """Between the input and the output of each layer, means over tokens.

    Attributes:
      distance: L2 distance of both vectors.
      cosine: Cosine of the angle between them.
      tokens: How many tokens were read.
    """

    distance: Float64[np.ndarray, " N"]
    cosine: Float64[np.ndarray, " N"]
    tokens: int


def measure(
    encoding: Encoding, texts: Iterable[str], source: str, *, batch_size: int = 64
) -> Changes:
    """Reads texts and compares neighbouring layers.

    Args:
      encoding: Of all layers, in order, without pooling.
      texts: One after the other.
      source: Names the texts in errors.
      batch_size: Texts at a time.

    Raises:
      UserError: the texts have no token.
    """
    distance = np.zeros(len(encoding.layers) - 1)
    cosine, tokens = np.zeros_like(distance), 0
    for _, features in extract(encoding, texts, source, batch_size=batch_size):
        before, after = features[:, :-1].astype(np.float64), features[:, 1:].astype(np.float64)
        distance += np.linalg.norm(after - before, axis=-1).sum(axis=0)
        lengths = np.linalg.norm(before, axis=-1) * np.linalg.norm(after, axis=-1)
        products = (before * after).sum(axis=-1)
        cosine += np.divide(products, lengths, where=lengths > 0, out=lengths * 0).sum(axis=0)
        tokens += len(features)
    if not tokens:
        raise UserError(f"{source} holds no text: expected one a line")
    return Changes(distance / tokens, cosine / tokens, tokens)


def check_plot(path: pathlib.Path) -> None:
    """Refuses what cannot be drawn, before anything is computed.

    Raises:
      UserError: another kind of file, one that cannot be written, or no matplotlib.
    """
    if path.suffix not in SUFFIXES:
        raise UserError(f"{path}: expected a file that ends in {', '.join(SUFFIXES)}")
    storage.check_file(path)
    check_can_draw()


def check_can_draw() -> None:
    """Refuses plots where there is nothing to draw them with.

    Raises:
      UserError: no matplotlib.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("a plot needs matplotlib: leave it out, or pip install 'bertjax[report]'")


def plot(path: pathlib.Path, changes: Sequence[tuple[str, Changes]]) -> None:
    """Draws both measures over the layers, a line for each run, side by side."""
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
