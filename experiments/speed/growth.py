"""Question: how time and memory of a training step grow with each size of model and batch.

    tools/run python experiments/speed/growth.py --output experiments/speed/growth_cpu.json

The base is RoBERTa's recipe at BERT-mini's size in float32: 4 layers of width 256, 16 x 128 tokens,
15% predicted, vocabulary 8,192, dropout 0.1. One size at a time is changed; `devices` are those of
XLA on the cores of one CPU, so that time does not fall with their number (several chips:
experiments/scaling.py). Each point is a process of `bertjax bench`; points are measured in turns,
--rounds times, and the median counts. Two models are fitted to all points:

  time    seconds of `TERMS`, with one rate each that is not negative (least squares of relative
          errors): the shares of the base follow from the rates
  memory  16 bytes per parameter (AdamW: weights, gradient, two moments) on every device, and the
          activations of Korthikanti et al. 2022, section 4.1, up to one factor, per device

The table has measured values, and measured over modelled ones: a ratio far from 1 is a cost that
the model misses. It is stored with all times in --output and plotted. Complete measurements are not
repeated.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.io import files as io_files
from bertjax.runtime import host

Sizes = Mapping[str, int]

BASE = {"batch": 16, "length": 128, "layers": 4, "width": 256, "vocabulary": 8192, "devices": 1}
VALUES = {
    "batch": (4, 8, 32, 64),
    "length": (32, 64, 256, 512),
    "layers": (1, 2, 8, 16),
    "width": (64, 128, 512, 768),
    "vocabulary": (2048, 4096, 16384, 32768),
    "devices": (2, 4),
}
"""Other values of each size."""
HEAD_WIDTH, PREDICTED_SHARE = 64, 0.15
BYTES_PER_PARAMETER, BYTES_OF_GRADIENT = 16, 4


def _tokens(sizes: Sizes) -> float:
    return sizes["batch"] * sizes["length"]


def _weights_of_attention(sizes: Sizes) -> float:
    heads = sizes["width"] // HEAD_WIDTH
    return sizes["layers"] * heads * _tokens(sizes) * sizes["length"]


def _logits(sizes: Sizes) -> float:
    return PREDICTED_SHARE * _tokens(sizes) * sizes["vocabulary"]


TERMS: Mapping[str, Callable[[Mapping[str, Any]], float]] = {
    "matmuls, by FLOPs": lambda row: row["model_flops_per_step"],
    "softmax and dropout of attention, by weights": lambda row: _weights_of_attention(row["sizes"]),
    "norms, activations, dropout, by hidden values": lambda row: (
        row["sizes"]["layers"] * _tokens(row["sizes"]) * row["sizes"]["width"]
    ),
    "softmax of predictions, by logits": lambda row: _logits(row["sizes"]),
    "optimizer, by parameters and devices": lambda row: row["parameters"] * row["sizes"]["devices"],
    "dispatch, constant": lambda row: 1.0,
}
"""Terms of the time of a step."""


def main() -> None:
    """Measures what is missing, prints the table and plots it."""
    arguments = _parser().parse_args()
    output = pathlib.Path(arguments.output)
    machine = {
        "cores": os.cpu_count(),
        "bfloat16_matmuls": host.has_bfloat16_matmul(),
        "jax": importlib.metadata.version("jax"),
    }
    stored: dict[str, Any] = {"machine": machine, "base": BASE, "rows": []}
    if output.exists():
        stored = json.loads(output.read_text(encoding="utf-8"))
    rows = stored["rows"]
    for number in range(arguments.rounds):
        for sizes in _points():
            row = next((row for row in rows if row["sizes"] == sizes), None)
            if row is None:
                row = {"sizes": sizes, "seconds": []}
                rows.append(row)
            if len(row["seconds"]) <= number:
                measured = _measure(sizes)
                row["seconds"].append(measured.pop("seconds_per_step"))
                row |= {name: row.get(name, value) for name, value in measured.items()}
                io_files.write_atomic(output, f"{json.dumps(stored, indent=1)}\n".encode())
                print(f"round {number + 1}: {sizes}: {row['seconds'][-1]:.4f} s", file=sys.stderr)
    print(table(rows))
    plot(rows, output.with_suffix(".png"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--output", required=True, metavar="FILE.json")
    return parser


def _points() -> list[dict[str, int]]:
    """Returns the sizes of all points, the base first."""
    return [BASE, *(BASE | {name: value} for name in VALUES for value in VALUES[name])]


def _measure(sizes: Sizes) -> dict[str, Any]:
    """Runs one measurement in a process, which compiles its step anew."""
    fields = {
        "data.phases": "()",
        "data.microbatches": 1,
        "data.batch_size": sizes["batch"],
        "data.max_seq_length": sizes["length"],
        "objectives.mlm.max_predictions_per_seq": round(PREDICTED_SHARE * sizes["length"]),
        "model.num_hidden_layers": sizes["layers"],
        "model.hidden_size": sizes["width"],
        "model.num_attention_heads": sizes["width"] // HEAD_WIDTH,
        "model.intermediate_size": 4 * sizes["width"],
        "model.vocab_size": sizes["vocabulary"],
        "model.precision": "float32",
    }
    command = [sys.executable, "-m", "bertjax", "bench", "--json", "--config", "roberta:base"]
    command += [f"--config.{name}={value}" for name, value in fields.items()]
    flags = f"--xla_force_host_platform_device_count={sizes['devices']}"
    environment = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    environment["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | environment
    )
    if done.returncode:
        sys.exit(f"growth: {sizes}: {done.stderr.strip().splitlines()[-1]}")
    (phase,) = json.loads(done.stdout)["phases"]
    names = ("seconds_per_step", "parameters", "model_flops_per_step", "compile_seconds")
    return {name: phase[name] for name in (*names, "argument_bytes", "temporary_bytes")}


def fit_rates(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the seconds per unit of each term, by the least squares of relative errors."""
    from scipy import optimize

    units = np.array([[term(row) for term in TERMS.values()] for row in rows])
    seconds = np.array([statistics.median(row["seconds"]) for row in rows])
    scale = units.max(axis=0)  # of one order of magnitude, for the solver
    rates, _ = optimize.nnls(units / scale / seconds[:, None], np.ones(len(rows)))
    return dict(zip(TERMS, (rates / scale).tolist(), strict=True))


def model_seconds(row: Mapping[str, Any], rates: Mapping[str, float]) -> float:
    """Returns the modelled seconds of a step."""
    return sum(rate * TERMS[name](row) for name, rate in rates.items())


def model_bytes(row: Mapping[str, Any], base: Mapping[str, Any]) -> float:
    """Returns the modelled bytes of a device, whose activations are scaled to those of the base."""
    kept = base["temporary_bytes"] - BYTES_OF_GRADIENT * base["parameters"]
    scale = kept / _activations(base["sizes"])
    return BYTES_PER_PARAMETER * row["parameters"] + scale * _activations(row["sizes"])


def _activations(sizes: Sizes) -> float:
    """Returns bytes of the activations of a device, up to a factor.

    A layer keeps 34 bytes per token and unit of the width, and 5 per weight of attention (in 16
    bits); the predictions keep logits and their gradient.
    """
    hidden = 34 * sizes["layers"] * _tokens(sizes) * sizes["width"]
    total = hidden + 5 * _weights_of_attention(sizes) + 2 * 4 * _logits(sizes)
    return total / sizes["devices"]


def _bytes(row: Mapping[str, Any]) -> int:
    return row["argument_bytes"] + row["temporary_bytes"]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Formats times and memory of a device, measured and over the models."""
    base = next(row for row in rows if row["sizes"] == BASE)
    rates = fit_rates(rows)
    lines = [
        f"{'':20}{'s a step':>10}{'over model':>12}{'MB':>9}{'over model':>12}{'compile s':>11}"
    ]
    for row in rows:
        changed = [f"{name} {value}" for name, value in row["sizes"].items() if value != BASE[name]]
        seconds = statistics.median(row["seconds"])
        lines.append(
            f"{', '.join(changed) or 'base':20}{seconds:10.4f}"
            f"{seconds / model_seconds(row, rates):11.2f}x{_bytes(row) / 1e6:9,.0f}"
            f"{_bytes(row) / model_bytes(row, base):11.2f}x{row['compile_seconds']:11.1f}"
        )
    lines += ["", "time of the base by the model"]
    for name, rate in rates.items():
        share = rate * TERMS[name](base) / model_seconds(base, rates)
        lines.append(f"  {name:48}{share:6.1%}")
    return "\n".join(lines)


def plot(rows: Sequence[Mapping[str, Any]], path: pathlib.Path) -> None:
    """Plots time and memory of a step against each size, with their models."""
    from matplotlib.figure import Figure

    base, rates = next(row for row in rows if row["sizes"] == BASE), fit_rates(rows)
    figure = Figure(figsize=(18, 6), layout="constrained")
    grid = figure.subplots(2, len(VALUES), sharey="row")
    for (above, below), name in zip(grid.T, VALUES, strict=True):
        others = {key: value for key, value in BASE.items() if key != name}
        own = [row for row in rows if others.items() <= row["sizes"].items()]
        own.sort(key=lambda row: row["sizes"][name])
        values = [row["sizes"][name] for row in own]
        seconds = [statistics.median(row["seconds"]) for row in own]
        above.loglog(values, seconds, "o-", label="measured")
        above.loglog(values, [model_seconds(row, rates) for row in own], "--", label="model")
        below.loglog(values, [_bytes(row) / 1e6 for row in own], "o-")
        below.loglog(values, [model_bytes(row, base) / 1e6 for row in own], "--")
        for axes in (above, below):
            axes.set_xticks(values, [f"{value:,}" for value in values])
            axes.minorticks_off()
            axes.grid(alpha=0.3)
        below.set_xlabel(name)
    grid[0, 0].set_ylabel("s a step")
    grid[1, 0].set_ylabel("MB per device")
    grid[0, 0].legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
