"""Question: how far a run grows over chips, and what limits it there.

    python experiments/scaling.py --config configs/bert_large.py --chip v5e

Weak scaling gives every chip the same number of sequences, strong scaling shares out one batch. The
training step of each number of chips is compiled for TPUs that need not be here (`bertjax plan`,
pip install 'bertjax[tpu,report]'), and its roofline drawn: the time of a step, what a chip sends in
it, and the memory it needs. Points that were compiled before are kept in the JSON file; an
interrupted run goes on.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from bertjax.errors import UserError

CAUSES = {"products": "products", "memory": "memory traffic", "collectives": "collectives"}


def main() -> None:
    """Compiles what is missing, and prints and draws all."""
    arguments = _parser().parse_args()
    try:
        run(arguments)
    except UserError as error:
        sys.exit(f"scaling: error: {error}")


def run(arguments: argparse.Namespace) -> None:
    """Compiles what is missing, and prints and draws all.

    Raises:
      UserError: there is no such config, chip or number of chips.
    """
    out = pathlib.Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    file, _, argument = arguments.config.partition(":")
    config = "_".join(filter(None, [pathlib.Path(file).stem, argument]))
    path = out / f"{config}_{arguments.chip}_{arguments.length}.json"
    points = json.loads(path.read_text()) if path.exists() else []
    known = {(point["scaling"], point["chips"], point["batch_size"]) for point in points}
    for scaling, chips, batch_size in wanted(arguments):
        if (scaling, chips, batch_size) in known:
            continue
        print(f"compiling {scaling} scaling, {chips} chips, {batch_size} sequences", flush=True)
        made = {"scaling": scaling, "chips": chips, "batch_size": batch_size}
        points.append(made | point(compiled(arguments, chips, batch_size)))
        points.sort(key=lambda point: (point["scaling"], point["chips"], point["batch_size"]))
        write(path, points)
    print(table(points))
    draw(points, f"{arguments.config} on {arguments.chip}", path.with_suffix(".png"))
    print(f"{path}, {path.with_suffix('.png')}")


def wanted(arguments: argparse.Namespace) -> Iterator[tuple[str, int, int]]:
    """Scaling, chips and sequences of each point."""
    for chips in arguments.chips:
        yield "weak", chips, chips * arguments.per_chip
        if arguments.batch_size % chips == 0:
            yield "strong", chips, arguments.batch_size


def compiled(arguments: argparse.Namespace, chips: int, batch_size: int) -> dict[str, Any]:
    """What `bertjax plan` says of one point, in a process of its own.

    Raises:
      UserError: with its words, if it says no.
    """
    from bertjax.train.chips import CHIPS

    if arguments.chip not in CHIPS:
        raise UserError(f"no chip {arguments.chip!r}: {', '.join(CHIPS)}")
    topology = f"{arguments.chip}-{chips * CHIPS[arguments.chip].names_count}"
    fields = {"phases": "()", "max_seq_length": arguments.length, "batch_size": batch_size}
    words = ["--config", arguments.config, "--topology", topology, "--json"]
    words += [f"--config.data.{name}={value}" for name, value in fields.items()]
    words += ["--config.data.microbatches=1", *arguments.override]
    done = subprocess.run(
        [sys.executable, "-m", "bertjax", "plan", *words],
        capture_output=True,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )
    if done.returncode:
        raise UserError(f"{topology}: {done.stderr.strip().splitlines()[-1]}")
    (step,) = json.loads(done.stdout)["steps"]
    return step


def point(step: dict[str, Any]) -> dict[str, Any]:
    """What is drawn of a step: seconds and bytes, of one device."""
    if not step["fits"]:
        return {"fits": False, "memory_needed": step["memory"]["needed"]}
    seconds = step["seconds"]
    return {
        "fits": True,
        "seconds": seconds,
        "bytes_sent": sum(each["bytes"] for each in step["collectives"]),
        "memory": step["memory"]["all"],
        "memory_there": step["memory"]["there"],
        "sequences_per_second": step["sequences_per_second"],
        "model_flops_utilisation": step["model_flops_utilisation"],
        "limit": CAUSES[max(CAUSES, key=lambda cause: seconds[cause])],
    }


def write(path: pathlib.Path, points: list[dict[str, Any]]) -> None:
    """Replaces the file at once, so that an interruption leaves the old or the new one."""
    beside = path.with_suffix(".tmp")
    beside.write_text(json.dumps(points, indent=1) + "\n")
    beside.replace(path)


def table(points: list[dict[str, Any]]) -> str:
    """A line for each point."""
    lines = [
        "scaling   chips  sequences   step, ms   sent, MB  memory, GB  sequences/s    MFU  limit"
    ]
    for each in points:
        head = f"{each['scaling']:<8} {each['chips']:>6} {each['batch_size']:>10}"
        if not each["fits"]:
            lines.append(f"{head}   does not fit: {each['memory_needed'] / 1e9:.3g} GB")
            continue
        lines.append(
            f"{head} {each['seconds']['step'] * 1e3:>10.4g} {each['bytes_sent'] / 1e6:>10.4g}"
            f" {each['memory'] / 1e9:>11.3g} {each['sequences_per_second']:>12,.0f}"
            f" {each['model_flops_utilisation']:>6.1%}  {each['limit']}"
        )
    return "\n".join(lines)


def draw(points: list[dict[str, Any]], title: str, path: pathlib.Path) -> None:
    """Step time, bytes sent and memory over the number of chips."""
    from matplotlib.figure import Figure

    panels = {
        "step, at least (ms)": lambda each: each["seconds"]["step"] * 1e3,
        "sent by a chip in a step (MB)": lambda each: each["bytes_sent"] / 1e6,
        "memory of a chip (GB)": lambda each: each["memory"] / 1e9,
    }
    held = [each for each in points if each["fits"]]
    counts = sorted({each["chips"] for each in held})
    figure = Figure(figsize=(13, 4), layout="constrained")
    figure.suptitle(title)
    for axes, (name, value) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        for scaling, colour in (("weak", "tab:blue"), ("strong", "tab:orange")):
            drawn = [each for each in held if each["scaling"] == scaling]
            if not drawn:
                continue
            chips = [each["chips"] for each in drawn]
            axes.plot(chips, [value(each) for each in drawn], "o-", color=colour, label=scaling)
            if name.startswith("step"):
                first = value(drawn[0])
                ideal = [
                    first if scaling == "weak" else first * chips[0] / count for count in chips
                ]
                axes.plot(chips, ideal, ":", color=colour, label=f"{scaling}, without loss")
        axes.set(xlabel="chips", title=name, xscale="log")
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.set_xticks([], minor=True)
        axes.set_ylim(0, 1.15 * max((value(each) for each in held), default=1) or 1)
        axes.legend()
    figure.savefig(path, dpi=120)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--config", default="configs/bert_large.py", help="what is trained")
    add("--chip", default="v5e", help="v4, v5e, v5p, v6e, tpu7x")
    add("--chips", type=int, nargs="+", default=[1, 4, 16, 64, 256], help="how many")
    add("--per_chip", type=int, default=16, help="sequences of a chip in weak scaling (default 16)")
    add("--batch_size", type=int, default=4096, help="of strong scaling (default 4,096)")
    add("--length", type=int, default=512, help="tokens of a sequence (default 512)")
    add("--override", nargs="*", default=[], help="further --config.FIELD=VALUE of the plan")
    add("--out", default="experiments/scaling", help="folder of the JSON file and the plot")
    return parser


if __name__ == "__main__":
    main()
