"""Question: the scaling of a run with the number of TPU chips, and its bottleneck.

    python experiments/scaling.py --config configs/bert_large.py --chip v5e
    python experiments/scaling.py --chip v5p --chips 1 8 64 1024 --config.mesh.shard_optimizer=true

Weak scaling has a fixed number of sequences per chip. Strong scaling has a fixed batch size, with
microbatches of at most --per_chip sequences. The training step is compiled for each number of chips
as by `bertjax plan`, without TPU hardware (pip install 'bertjax[tpu,plots]'), and its roofline is
plotted: step time and bottleneck, bytes sent, memory traffic and memory of a chip. Compiled points
are stored in the JSON file, so that an interrupted run can be resumed.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from bertjax.config import load_config, split_overrides
from bertjax.errors import UserError, nearest
from bertjax.io import files as io_files
from bertjax.io import storage

CAUSES = {"matmuls": "matmuls", "memory": "memory traffic", "collectives": "collectives"}
MARKERS = {"matmuls": "o", "memory traffic": "s", "collectives": "^"}

PointSpec = dict[str, Any]
"""Settings of a point: scaling, chips, batch_size, microbatches, and overrides of the config."""


def main() -> None:
    """Runs the command line."""
    os.environ["JAX_PLATFORMS"] = "cpu"  # do not occupy an accelerator of this machine
    try:
        run(sys.argv[1:])
    except UserError as error:
        sys.exit(f"scaling: error: {error}")


def run(words: Sequence[str]) -> None:
    """Compiles the missing points, prints the table and plots it.

    Raises:
      UserError: Unknown config or chip, or impossible number of chips.
    """
    rest, overrides = split_overrides(list(words))
    arguments = _parser().parse_args(rest)
    check(arguments)
    out = pathlib.Path(arguments.out)
    storage.make_folder(out)
    file, _, argument = arguments.config.partition(":")
    config = "_".join(filter(None, [pathlib.Path(file).stem, argument]))
    path = out / f"{config}_{arguments.chip}_{arguments.length}.json"
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    points = []
    for spec in requested_points(arguments, dict(overrides)):
        found = next((each for each in stored if spec.items() <= each.items()), None)
        if found is None:
            found = spec | point(arguments, spec)
            stored.append(found)
            io_files.write_text(path, json.dumps(stored, indent=1) + "\n")
        points.append(found)
    print(table(points))
    title = " ".join([arguments.config, *(f"{name}={value}" for name, value in overrides)])
    plot(points, f"{title} on {arguments.chip}", path.with_suffix(".png"))
    print(f"{path}, {path.with_suffix('.png')}")


def check(arguments: argparse.Namespace) -> None:
    """Checks the arguments before compilation.

    Raises:
      UserError: Unknown chip, a number below 1, or matplotlib is not installed.
    """
    from bertjax.runtime.chips import CHIPS

    if arguments.chip not in CHIPS:
        raise UserError(f"--chip: unknown {arguments.chip!r}; {nearest(arguments.chip, CHIPS)}")
    for name in ("chips", "per_chip", "batch_size", "length"):
        value = getattr(arguments, name)
        least = min(value) if name == "chips" else value
        if least < 1:
            raise UserError(f"--{name}: got {least}, expected an integer >= 1")
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("matplotlib is not installed: pip install 'bertjax[plots]'")


def requested_points(
    arguments: argparse.Namespace, overrides: dict[str, str]
) -> Iterator[PointSpec]:
    """Yields the points: weak scaling, then strong scaling, by number of chips."""
    shared = {"overrides": overrides}
    counts = sorted(set(arguments.chips))
    for chips in counts:
        batch = {"batch_size": chips * arguments.per_chip, "microbatches": 1}
        yield shared | {"scaling": "weak", "chips": chips} | batch
    for chips in counts:
        rows, rest = divmod(arguments.batch_size, chips)
        if rest == 0:
            size = max(n for n in range(1, arguments.per_chip + 1) if rows % n == 0)
            batch = {"batch_size": arguments.batch_size, "microbatches": rows // size}
            yield shared | {"scaling": "strong", "chips": chips} | batch


def point(arguments: argparse.Namespace, spec: PointSpec) -> dict[str, Any]:
    """Compiles one point and returns seconds and bytes of a step, per chip.

    Raises:
      UserError: The config cannot be planned, or there is no slice with this number of chips.
    """
    from bertjax import build
    from bertjax.profiling import plan as profiling_plan
    from bertjax.profiling.worker import CompilerProcess
    from bertjax.runtime import chips

    fields = {"data.phases": "()", "data.max_seq_length": arguments.length}
    fields |= {f"data.{name}": spec[name] for name in ("batch_size", "microbatches")}
    fields |= spec["overrides"]
    overrides = [(name, str(value)) for name, value in fields.items()]
    config = profiling_plan.resolve_for_tpu(load_config(arguments.config, overrides))
    count = spec["chips"] * chips.CHIPS[arguments.chip].name_units_per_chip
    topology = chips.get_topology(f"{arguments.chip}-{count}")
    (phase,) = build.phases(config)
    with CompilerProcess(topology.name, topology.slices) as compile_step:
        step = compile_step(config, phase)
    if not step.fits:
        return {"fits": False, "memory_needed": step.memory.needed}
    return {
        "fits": True,
        "seconds": step.seconds,
        "bytes_sent": sum(each.bytes for each in step.collectives),
        "bytes_moved": step.memory_bytes,
        "memory": step.memory["all"],
        "memory_capacity": step.memory["capacity"],
        "sequences_per_second": spec["batch_size"] / step.seconds["step"],
        "model_flops_utilisation": profiling_plan.compute_mfu(step, topology),
    }


def table(points: list[dict[str, Any]]) -> str:
    """Formats a table with a line for each point."""
    lines = [
        "scaling   chips  sequences   step, ms   sent, MB  moved, GB  memory, GB  sequences/s"
        "    MFU  limit"
    ]
    for each in points:
        head = f"{each['scaling']:<8} {each['chips']:>6} {each['batch_size']:>10}"
        if not each["fits"]:
            lines.append(f"{head}   does not fit: {each['memory_needed'] / 1e9:.3g} GB")
            continue
        cells = [
            f"{each['seconds']['step'] * 1e3:>10.4g}",
            f"{each['bytes_sent'] / 1e6:>10.4g}",
            f"{each['bytes_moved'] / 1e9:>10.3g}",
            f"{each['memory'] / 1e9:>11.3g}",
            f"{each['sequences_per_second']:>12,.0f}",
            f"{each['model_flops_utilisation']:>6.1%}",
        ]
        lines.append(" ".join([head, *cells]) + f"  {limit(each['seconds'])}")
    return "\n".join(lines)


def limit(seconds: dict[str, float]) -> str:
    """The bottleneck: the largest term of the roofline."""
    return CAUSES[max(CAUSES, key=lambda cause: seconds[cause])]


def plot(points: list[dict[str, Any]], title: str, path: pathlib.Path) -> None:
    """Plots step time with its bottleneck, bytes sent and moved, and memory by number of chips."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    panels = {
        "step time, lower bound (ms)": lambda each: each["seconds"]["step"] * 1e3,
        "sent per chip and step (MB)": lambda each: each["bytes_sent"] / 1e6,
        "memory traffic per chip and step (GB)": lambda each: each["bytes_moved"] / 1e9,
        "memory per chip (GB)": lambda each: each["memory"] / 1e9,
    }
    fitting = [each for each in points if each["fits"]]
    counts = sorted({each["chips"] for each in fitting})
    figure = Figure(figsize=(13, 9), layout="constrained")
    figure.suptitle(title)
    for axes, (name, value) in zip(figure.subplots(2, 2).flat, panels.items(), strict=True):
        for scaling, colour in (("weak", "tab:blue"), ("strong", "tab:orange")):
            shown = [each for each in fitting if each["scaling"] == scaling]
            chips, values = [each["chips"] for each in shown], [value(each) for each in shown]
            axes.plot(chips, values, "-", color=colour, label=scaling)
            for each in shown:
                marker = MARKERS[limit(each["seconds"])]
                axes.plot(each["chips"], value(each), marker, color=colour)
            if shown and name.startswith("step"):
                grow = [1 if scaling == "weak" else chips[0] / count for count in chips]
                ideal = [values[0] * each for each in grow]
                axes.plot(chips, ideal, ":", color=colour, label=f"{scaling}, ideal")
        axes.set(xlabel="chips", title=name, xscale="log")
        axes.set_xticks(counts, [f"{count:,}" for count in counts])
        axes.set_xticks([], minor=True)
        values = list(map(value, fitting)) or [1]
        if name.startswith(("step", "memory traffic")):
            axes.set(yscale="log", ylim=(min(values) / 2, 2 * max(values)))
            axes.yaxis.set_major_formatter("{x:g}")
        else:
            axes.set_ylim(0, 1.3 * max(values) or 1)
        limits = sorted({limit(each["seconds"]) for each in fitting})
        handles = [Line2D([], [], color="grey", ls="", marker=MARKERS[name]) for name in limits]
        lines, labels = axes.get_legend_handles_labels()
        axes.legend(lines + handles, labels + [f"limited by {name}" for name in limits])
    figure.savefig(path, dpi=100)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="--config.FIELD=VALUE overrides a field of the config, as in `bertjax plan`.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--config", default="configs/bert_large.py", help="config file")
    add("--chip", default="v5e", help="kind of TPU: v4, v5e, v5p, v6e, tpu7x")
    add("--chips", type=int, nargs="+", default=[1, 4, 16, 64, 256], help="numbers of chips")
    add("--per_chip", type=int, default=16, help="sequences per chip in weak scaling (default 16)")
    add("--batch_size", type=int, default=4096, help="batch size of strong scaling (default 4,096)")
    add("--length", type=int, default=512, help="sequence length (default 512)")
    add("--out", default="experiments/scaling", help="folder of the JSON file and the plot")
    return parser


if __name__ == "__main__":
    main()
