"""Question: how far a run grows over chips, and what limits it there.

    python experiments/scaling.py --config configs/bert_large.py --chip v5e
    python experiments/scaling.py --chip v5p --chips 1 8 64 1024 --config.mesh.shard_optimizer=true

Weak scaling gives every chip the same number of sequences. Strong scaling shares out one batch, of
which few chips take as many at a time. The training step of each number of chips is compiled as
`bertjax plan` does it, for TPUs that need not be here (pip install 'bertjax[tpu,report]'), and its
roofline drawn: the time of a step and what it waits for, what a chip sends, what it moves in its
memory, and how much it holds. Points that were compiled before are kept in the JSON file; an
interrupted run goes on.
"""

import argparse
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

Asked = dict[str, Any]
"""One point: scaling, chips, batch_size, microbatches, and the overrides of the config."""


def main() -> None:
    """Compiles what is missing, and prints and draws all."""
    os.environ["JAX_PLATFORMS"] = "cpu"  # an accelerator that is here stays free
    try:
        run(sys.argv[1:])
    except UserError as error:
        sys.exit(f"scaling: error: {error}")


def run(words: Sequence[str]) -> None:
    """Compiles what is missing, and prints and draws all that is asked.

    Raises:
      UserError: there is no such config, chip or number of chips.
    """
    rest, overrides = split_overrides(list(words))
    arguments = _parser().parse_args(rest)
    check(arguments)
    out = pathlib.Path(arguments.out)
    storage.make_folder(out)
    file, _, argument = arguments.config.partition(":")
    config = "_".join(filter(None, [pathlib.Path(file).stem, argument]))
    path = out / f"{config}_{arguments.chip}_{arguments.length}.json"
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    points = []
    for asked in requested_points(arguments, dict(overrides)):
        made = next((each for each in kept if asked.items() <= each.items()), None)
        if made is None:
            made = asked | point(arguments, asked)
            kept.append(made)
            io_files.write_text(path, json.dumps(kept, indent=1) + "\n")
        points.append(made)
    print(table(points))
    title = " ".join([arguments.config, *(f"{name}={value}" for name, value in overrides)])
    draw(points, f"{title} on {arguments.chip}", path.with_suffix(".png"))
    print(f"{path}, {path.with_suffix('.png')}")


def check(arguments: argparse.Namespace) -> None:
    """Refuses what can be seen to be wrong before anything is compiled.

    Raises:
      UserError: there is no such chip, a number is no number of things, or nothing can be drawn.
    """
    from bertjax.inference import layer_analysis
    from bertjax.runtime.chips import CHIPS

    if arguments.chip not in CHIPS:
        raise UserError(f"no chip {arguments.chip!r}: {nearest(arguments.chip, CHIPS)}")
    for name in ("chips", "per_chip", "batch_size", "length"):
        value = getattr(arguments, name)
        if min(value) < 1 if name == "chips" else value < 1:
            raise UserError(f"--{name}: expected 1 or more")
    layer_analysis.check_matplotlib()


def requested_points(arguments: argparse.Namespace, overrides: dict[str, str]) -> Iterator[Asked]:
    """What is asked, scaling by scaling, from few chips to many."""
    shared = {"overrides": overrides}
    counts = sorted(set(arguments.chips))
    for chips in counts:
        batch = {"batch_size": chips * arguments.per_chip, "microbatches": 1}
        yield shared | {"scaling": "weak", "chips": chips} | batch
    for chips in counts:
        rows, rest = divmod(arguments.batch_size, chips)
        if rest == 0:
            at_once = max(n for n in range(1, arguments.per_chip + 1) if rows % n == 0)
            batch = {"batch_size": arguments.batch_size, "microbatches": rows // at_once}
            yield shared | {"scaling": "strong", "chips": chips} | batch


def point(arguments: argparse.Namespace, asked: Asked) -> dict[str, Any]:
    """Compiles one point: seconds and bytes of a step, of one chip.

    Raises:
      UserError: the config cannot be planned, or there is no slice of so many chips.
    """
    from bertjax import build
    from bertjax.profiling import plan as profiling_plan
    from bertjax.profiling.worker import CompilerProcess
    from bertjax.runtime import chips

    fields = {"data.phases": "()", "data.max_seq_length": arguments.length}
    fields |= {f"data.{name}": asked[name] for name in ("batch_size", "microbatches")}
    fields |= asked["overrides"]
    overrides = [(name, str(value)) for name, value in fields.items()]
    config = profiling_plan.resolve_for_tpu(load_config(arguments.config, overrides))
    count = asked["chips"] * chips.CHIPS[arguments.chip].name_units_per_chip
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
        "memory_there": step.memory["capacity"],
        "sequences_per_second": asked["batch_size"] / step.seconds["step"],
        "model_flops_utilisation": profiling_plan.compute_mfu(step, topology),
    }


def table(points: list[dict[str, Any]]) -> str:
    """A line for each point."""
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
    """What takes longest."""
    return CAUSES[max(CAUSES, key=lambda cause: seconds[cause])]


def draw(points: list[dict[str, Any]], title: str, path: pathlib.Path) -> None:
    """Step time and its limit, bytes sent and moved, and memory over the number of chips."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    panels = {
        "step, at least (ms)": lambda each: each["seconds"]["step"] * 1e3,
        "sent by a chip in a step (MB)": lambda each: each["bytes_sent"] / 1e6,
        "moved in its memory in a step (GB)": lambda each: each["bytes_moved"] / 1e9,
        "held by a chip (GB)": lambda each: each["memory"] / 1e9,
    }
    held = [each for each in points if each["fits"]]
    counts = sorted({each["chips"] for each in held})
    figure = Figure(figsize=(13, 9), layout="constrained")
    figure.suptitle(title)
    for axes, (name, value) in zip(figure.subplots(2, 2).flat, panels.items(), strict=True):
        for scaling, colour in (("weak", "tab:blue"), ("strong", "tab:orange")):
            drawn = [each for each in held if each["scaling"] == scaling]
            chips, values = [each["chips"] for each in drawn], [value(each) for each in drawn]
            axes.plot(chips, values, "-", color=colour, label=scaling)
            for each in drawn:
                marker = MARKERS[limit(each["seconds"])]
                axes.plot(each["chips"], value(each), marker, color=colour)
            if drawn and name.startswith("step"):
                grow = [1 if scaling == "weak" else chips[0] / count for count in chips]
                ideal = [values[0] * each for each in grow]
                axes.plot(chips, ideal, ":", color=colour, label=f"{scaling}, without loss")
        axes.set(xlabel="chips", title=name, xscale="log")
        axes.set_xticks(counts, [f"{count:,}" for count in counts])
        axes.set_xticks([], minor=True)
        values = list(map(value, held)) or [1]
        if name.startswith(("step", "moved")):
            axes.set(yscale="log", ylim=(min(values) / 2, 2 * max(values)))
            axes.yaxis.set_major_formatter("{x:g}")
        else:
            axes.set_ylim(0, 1.3 * max(values) or 1)
        limits = sorted({limit(each["seconds"]) for each in held})
        handles = [Line2D([], [], color="grey", ls="", marker=MARKERS[name]) for name in limits]
        lines, labels = axes.get_legend_handles_labels()
        axes.legend(lines + handles, labels + [f"waits for {name}" for name in limits])
    figure.savefig(path, dpi=100)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="--config.FIELD=VALUE changes a field of the config, as for `bertjax plan`.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--config", default="configs/bert_large.py", help="what is trained")
    add("--chip", default="v5e", help="v4, v5e, v5p, v6e, tpu7x")
    add("--chips", type=int, nargs="+", default=[1, 4, 16, 64, 256], help="how many")
    add("--per_chip", type=int, default=16, help="sequences of a chip in weak scaling (default 16)")
    add("--batch_size", type=int, default=4096, help="of strong scaling (default 4,096)")
    add("--length", type=int, default=512, help="tokens of a sequence (default 512)")
    add("--out", default="experiments/scaling", help="folder of the JSON file and the plot")
    return parser


if __name__ == "__main__":
    main()
