"""Measure how layers change hidden states: L2 distance and cosine."""

import argparse
import json

from bertjax.constraints import PositiveInt, checked
from bertjax.errors import UserError

EPILOG = """\
examples:
  bertjax analyze --init runs/albert --input sentences.txt
  bertjax analyze --init runs/bert runs/albert --input sentences.txt \\
      --plot layers.png

For each layer, the L2 distance and the cosine similarity between its input and
its output, averaged over all tokens (Lan et al. 2020, figure 2: both are smooth
for shared layers). Layer 1 reads the embeddings. Lines longer than the model's
maximum length are truncated.
"""


def main(argv: list[str]) -> None:
    """Measures the layers of each run; prints a table or JSON, and optionally writes a plot."""
    arguments = _parser().parse_args(argv)
    from bertjax.io import copies, storage

    if not storage.to_path(arguments.input).is_file():
        raise UserError(f"no file {arguments.input}: --input expects a file with one text per line")
    from bertjax.inference import features, layer_analysis
    from bertjax.io.lines import read_text_lines

    out = storage.to_path(arguments.plot) if arguments.plot else None
    if out:
        layer_analysis.check_plot(out)
    read_text_lines(arguments.input, tables=())  # raises before a model is loaded
    measured = []
    for init in arguments.init:
        encoding = features.load(init, layers="all", truncate=True)
        lines = (text for _, text in read_text_lines(arguments.input, tables=()))
        found = layer_analysis.measure(
            encoding, lines, arguments.input, batch_size=arguments.batch_size
        )
        measured.append((init, found))
    if arguments.json:
        for init, found in measured:
            print(json.dumps({"init": init, "tokens": found.tokens, **_columns(found)}))
    else:
        _print_table(measured)
    if out:
        with copies.upload_file(out) as file:
            layer_analysis.plot(file, measured)
        print(f"plot: {out}")


def _columns(found) -> dict[str, list[float]]:
    return {"distance": found.distance.tolist(), "cosine": found.cosine.tolist()}


def _print_table(measured: list) -> None:
    for init, found in measured:
        print(f"{init}: {found.tokens:,} tokens")
        print(f"{'layer':>5}  {'L2 distance':>11}  {'cosine':>7}")
        rows = zip(found.distance, found.cosine, strict=True)
        for layer, (distance, cosine) in enumerate(rows, 1):
            print(f"{layer:>5}  {distance:>11.4f}  {cosine:>7.4f}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bertjax analyze",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--init",
        required=True,
        nargs="+",
        metavar="RUN",
        help="runs to compare: RUN (newest checkpoint), RUN@STEP or RUN@best",
    )
    add("--input", required=True, metavar="FILE", help="file with one text per line")
    add(
        "--plot",
        default="",
        metavar="FILE",
        help="also write a plot: .png, .svg or .pdf (default: none)",
    )
    add(
        "--batch_size",
        action=checked(PositiveInt),
        default=64,
        metavar="N",
        help="texts per batch (default: 64)",
    )
    add("--json", action="store_true", help="print one JSON object per run instead of tables")
    return parser
