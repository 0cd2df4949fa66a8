"""Question: what the published recipes take, at least, on which pods.

    python experiments/pods.py
    python experiments/pods.py --configs configs/bert_large.py --pods v5e-8 v6e-256

Every recipe is planned for every pod by `bertjax plan`, with its own batch, in as many microbatches
as a chip seems to need (and in what `bertjax plan` finds, where that is too few); the JSON of the
plans is kept, so that an interrupted table goes on. What is kept stays as it was planned: delete it
to plan anew. Prints the table of the README.
"""

import argparse
import json
import pathlib
import subprocess
import sys
from typing import Any

from bertjax import build
from bertjax.config import load_config
from bertjax.errors import UserError
from bertjax.io import files as io_files
from bertjax.io import storage
from bertjax.runtime import chips

TOKENS = {
    "configs/bert_base.py": 16_384,
    "configs/bert_large.py": 8_192,
    "configs/roberta.py:large": 4_096,
    "configs/albert.py:xxlarge": 2_048,
    "configs/electra.py:large": 4_096,
}
"""By recipe, tokens of a microbatch that a chip of 16 GB holds, in powers of two."""

PODS = ("v5e-8", "v5e-256", "v5p-512", "v6e-256")

Plan = dict[str, Any]


def main() -> None:
    """Plans what is missing, and prints all."""
    arguments = _parser().parse_args()
    out = pathlib.Path(arguments.out)
    try:
        storage.make_folder(out)
        made = [
            (config, pod, planned(config, pod, out))
            for config in arguments.configs
            for pod in arguments.pods
        ]
    except UserError as error:
        sys.exit(f"pods: error: {error}")
    print(table(made))


def planned(config: str, pod: str, out: pathlib.Path) -> Plan:
    """What `bertjax plan` says, kept in a file of this recipe and pod.

    Raises:
      UserError: it refuses.
    """
    name = config.removeprefix("configs/").replace(".py", "").replace(":", "_")
    path = out / f"{name}_{pod}.json"
    if not path.exists():
        parts = microbatches(config, pod)
        print(f"{config} on {pod}, microbatches: {parts}", file=sys.stderr, flush=True)
        words = ["--config", config, "--topology", pod, "--json"]
        words.append(f"--config.data.microbatches={parts}")
        done = subprocess.run(
            [sys.executable, "-m", "bertjax", "plan", *words], stdout=subprocess.PIPE, text=True
        )
        if done.returncode:
            raise UserError(f"bertjax plan {' '.join(words)}: exit status {done.returncode}")
        io_files.write_text(path, done.stdout)
    return json.loads(path.read_text(encoding="utf-8"))


def microbatches(config: str, pod: str) -> int:
    """The power of two that leaves a chip as many tokens at a time as it holds, and one row."""
    topology = chips.get_topology(pod)
    longest = max(build.phases(load_config(config, ())), key=lambda phase: phase.max_seq_length)
    rows = longest.batch_size // len(topology.devices)
    tokens = TOKENS.get(config, min(TOKENS.values())) * topology.chip.memory_bytes / 16e9
    parts = 1
    while rows * longest.max_seq_length / parts > tokens and rows % (2 * parts) == 0:
        parts *= 2
    return parts


def table(made: list[tuple[str, str, Plan]]) -> str:
    """Markdown: a line for each recipe and pod."""
    lines = [
        "| recipe | pod | microbatches | memory of a chip | step, at least | sequences/s, at most |"
        " MFU, at most | the run, at least | chip-hours |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    return "\n".join(lines + [_line(*each) for each in made])


def _line(config: str, pod: str, plan: Plan) -> str:
    head = f"| `{config.removeprefix('configs/')}` | {pod} |"
    if "run_seconds" not in plan:
        return f"{head} does not fit | | | | | | |"
    # The phase in which the run is longest.
    step = max(plan["that_fit"], key=lambda each: each["phase"]["steps"] * each["seconds"]["step"])
    settings, there, phase = step["settings"], step["memory"]["there"], step["phase"]
    shape = f"{phase['batch_size']:,} x {phase['max_seq_length']}"
    remat = "" if settings["remat"] == "none" else f", remat {settings['remat']}"
    numbers = dict.fromkeys(each["settings"]["microbatches"] for each in plan["that_fit"])
    parts = ", ".join(map(str, numbers))
    held = max(each["memory"]["all"] for each in plan["that_fit"])
    cells = [
        f"{parts}{remat}",
        f"{held / 1e9:.1f} of {there / 1e9:.0f} GB",
        f"{_time(step['seconds']['step'])} for {shape}",
        f"{step['sequences_per_second']:,.0f}",
        f"{step['model_flops_utilisation']:.0%}",
        f"{plan['run_seconds'] / 86_400:.2g} days",
        f"{plan['chip_hours']:,.0f}",
    ]
    return f"{head} {' | '.join(cells)} |"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--configs",
        nargs="+",
        default=list(TOKENS),
        help="default: the five of the README",
    )
    add("--pods", nargs="+", default=list(PODS), help="default: the four of the README")
    add("--out", default="experiments/pods", help="folder of the plans")
    return parser


if __name__ == "__main__":
    main()
