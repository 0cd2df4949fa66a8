r"""Question: how much each layer changes its input (Lan et al. 2020, figure 2).

    python experiments/layer_similarity.py --model runs/bert runs/albert --input sentences.txt \
        --plot layers.png

For each layer, the L2 distance and the cosine similarity between its input and its output, averaged
over all tokens; both are smooth for shared layers. Layer 1 reads the embeddings. Lines longer than
the model's maximum length are truncated.
"""

import argparse
import dataclasses
import importlib.util
import json
import pathlib
import sys
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float64

from bertjax.errors import UserError
from bertjax.inference import loader
from bertjax.inference.features import FeatureExtractor, extract, load
from bertjax.io import storage
from bertjax.io.lines import read_text_lines

SUFFIXES = (".png", ".svg", ".pdf")


def main() -> None:
    """Runs the command line."""
    try:
        run(sys.argv[1:])
    except UserError as error:
        sys.exit(f"layer_similarity: error: {error}")


def run(words: Sequence[str]) -> None:
    """Measures the layers of each model; prints a table or JSON, and optionally writes a plot.

    Raises:
      UserError: there is no such model or file, or the plot cannot be written.
    """
    arguments = _parser().parse_args(words)
    if arguments.plot:
        check_plot(pathlib.Path(arguments.plot))
    read_text_lines(arguments.input, tables=())  # raises before a model is loaded
    measured = []
    for model in arguments.model:
        extractor = load(loader.find_run(model), layers="all", truncate=True)
        lines = (text for _, text in read_text_lines(arguments.input, tables=()))
        measured.append((model, measure(extractor, lines, arguments.input)))
    for model, found in measured:
        if arguments.json:
            columns = {"distance": found.distance.tolist(), "cosine": found.cosine.tolist()}
            print(json.dumps({"model": model, "tokens": found.tokens, **columns}))
        else:
            _print_table(model, found)
    if arguments.plot:
        plot(pathlib.Path(arguments.plot), measured)
        print(f"plot: {arguments.plot}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", required=True, nargs="+", metavar="MODEL", help="models to compare")
    add("--input", required=True, metavar="FILE", help="file with one text per line")
    add("--plot", default="", metavar="FILE", help="also write a plot: .png, .svg or .pdf")
    add("--json", action="store_true", help="print one JSON object per model instead of tables")
    return parser


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
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("plots require matplotlib: pip install 'bertjax[plots]', or omit --plot")


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


def _print_table(model: str, found: LayerChanges) -> None:
    print(f"{model}: {found.tokens:,} tokens")
    print(f"{'layer':>5}  {'L2 distance':>11}  {'cosine':>7}")
    rows = zip(found.distance, found.cosine, strict=True)
    for layer, (distance, cosine) in enumerate(rows, 1):
        print(f"{layer:>5}  {distance:>11.4f}  {cosine:>7.4f}")


if __name__ == "__main__":
    main()
