"""Measures `bertjax extract` against the forward pass alone, on the same batches; prints JSON.

The whole reads lines, tokenizes, makes batches, computes, and writes a file of features. The
forward pass alone gets the very batches that the whole gave it, which are on the device already,
and what comes out is thrown away. Both are repeated in turn, and medians compared.

    python tools/measure_extract.py --init runs/bert --input sentences.txt
"""

import argparse
import dataclasses
import json
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from bertjax.errors import UserError
from bertjax.inference import feature_files
from bertjax.io.lines import read_text_lines


def main() -> None:
    """Measures, and prints what came of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--init", required=True, help="a run")
    parser.add_argument("--input", required=True, help="text, one a line")
    parser.add_argument("--layers", default="-1")
    parser.add_argument("--pool", default="none", choices=["none", "mean", "cls"])
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    try:
        print(json.dumps(measured(arguments), indent=2))
    except UserError as error:
        sys.exit(f"measure_extract: error: {error}")


def measured(arguments: argparse.Namespace) -> dict[str, object]:
    """Medians of both, and how many times the forward pass's time the whole takes."""
    import jax

    from bertjax.inference import features as inference_features

    opened = inference_features.load(arguments.init, layers=arguments.layers, pool=arguments.pool)
    batches = []

    def remembering(batch):
        batches.append(batch)
        return opened.forward(batch)

    # Compiles every length.
    rows = whole(dataclasses.replace(opened, forward=remembering), arguments.input)

    def alone() -> None:
        last = [opened.forward(batch) for batch in batches][-1]
        jax.block_until_ready(last)

    seconds = {"whole": [], "forward": []}
    for _ in range(arguments.repeats):
        seconds["whole"].append(clocked(lambda: whole(opened, arguments.input)))
        seconds["forward"].append(clocked(alone))
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return {
        "init": arguments.init,
        "rows": rows,
        "batches": len(batches),
        "seconds": seconds,
        "median_seconds": medians,
        "rows_per_second": rows / medians["whole"],
        "whole_over_forward": medians["whole"] / medians["forward"],
    }


def whole(encoding: object, source: str) -> int:
    """What the verb does; returns how many rows it wrote."""
    from bertjax.inference import features as inference_features

    count = 0
    lines = (text for _, text in read_text_lines(source))
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "features.npz"
        with feature_files.open_writer(out, encoding.layers, encoding.tokenizer) as file:
            for chunk, features in inference_features.extract(encoding, lines, source):
                file.add(chunk, features, tokens=encoding.pool == "none")
                count += len(features)
    return count


def clocked(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
