"""Measures `bertjax embed` against the forward pass alone, on the same batches; prints JSON.

The command reads lines, tokenizes, builds batches, computes, and writes a file of features. The
forward pass alone gets the same batches, already on the device, and its outputs are discarded. Both
are repeated alternately, and the medians are compared.

    python tools/measure_embed.py --model runs/bert --input sentences.txt
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
from bertjax.inference.features import FeatureExtractor
from bertjax.io.lines import read_text_lines


def main() -> None:
    """Runs the measurement and prints the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="folder of a run")
    parser.add_argument("--input", required=True, help="text file, one text per line")
    parser.add_argument("--layers", default="-1")
    parser.add_argument("--pooling", default="none", choices=["none", "mean", "weighted", "cls"])
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    try:
        print(json.dumps(measure(arguments), indent=2))
    except UserError as error:
        sys.exit(f"measure_embed: error: {error}")


def measure(arguments: argparse.Namespace) -> dict[str, object]:
    """Medians of both durations, and their ratio."""
    import jax

    from bertjax.inference import features as inference_features

    opened = inference_features.load(
        arguments.model, layers=arguments.layers, pooling=arguments.pooling
    )
    batches = []

    def record(batch):
        batches.append(batch)
        return opened.forward(batch)

    # Also compiles the forward pass for every length.
    rows = extract(dataclasses.replace(opened, forward=record), arguments.input)

    def forward_only() -> None:
        last = [opened.forward(batch) for batch in batches][-1]
        jax.block_until_ready(last)

    seconds = {"whole": [], "forward": []}
    for _ in range(arguments.repeats):
        seconds["whole"].append(time_call(lambda: extract(opened, arguments.input)))
        seconds["forward"].append(time_call(forward_only))
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return {
        "init": arguments.model,
        "rows": rows,
        "batches": len(batches),
        "seconds": seconds,
        "median_seconds": medians,
        "rows_per_second": rows / medians["whole"],
        "whole_over_forward": medians["whole"] / medians["forward"],
    }


def extract(encoding: FeatureExtractor, source: str) -> int:
    """Extracts features like `bertjax embed`; returns the number of rows written."""
    from bertjax.inference import features as inference_features

    count = 0
    lines = (text for _, text in read_text_lines(source))
    with tempfile.TemporaryDirectory() as folder:
        out, parts = pathlib.Path(folder) / "features.npz", pathlib.Path(folder)
        with feature_files.open_writer(out, encoding.layers, parts, encoding.tokenizer) as file:
            for chunk, features in inference_features.extract(encoding, lines, source):
                file.add(chunk, features, tokens=encoding.pooling == "none")
                count += len(features)
    return count


def time_call(work: Callable[[], object]) -> float:
    """The duration of a call in seconds."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
