r"""Question: lower bounds of the time and memory of published recipes on TPU pods.

    python experiments/pods.py
    python experiments/pods.py --configs configs/bert_large.py --pods v5e-8 v6e-256
    python experiments/pods.py --configs configs/modernbert.py:base --pods v5e-64 \
        --config.data.phases="()" --config.num_train_steps=364303 --out experiments/pods/modernbert

Runs `bertjax plan` for every recipe and pod, with the recipe's batch size and an estimated number
of microbatches (`bertjax plan` increases it if the step does not fit). The JSON output of the plans
is stored, so that an interrupted run can be resumed; delete a file to plan again. Prints the table
of docs/capacity.md. Overrides of the config, such as one phase instead of six, hold for all configs
of a call: they need an --out of their own.
"""

import argparse
import json
import pathlib
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from bertjax import build
from bertjax.config import load_config
from bertjax.errors import UserError
from bertjax.io import files as io_files
from bertjax.io import storage
from bertjax.overrides import Override, split_overrides
from bertjax.runtime import chips

TOKENS = {
    "configs/bert_base.py": 16_384,
    "configs/bert_large.py": 8_192,
    "configs/roberta.py:large": 4_096,
    "configs/albert.py:xxlarge": 2_048,
    "configs/electra.py:large": 4_096,
    "modernbert:base": 8_192,
    "modernbert:large": 4_096,
    "deberta:base": 2_048,
    "gpt_bert:100m": 1_024,
}
"""Tokens of a microbatch that fit on a chip of 16 GB, in powers of two, by recipe.

Of DeBERTa half of them and of GPT-BERT an eighth, which move fewer bytes by plan.
"""

CONFIGS = [config for config in TOKENS if config.startswith("configs/")]
PODS = ("v5e-8", "v5e-256", "v5p-512", "v6e-256")

Plan = dict[str, Any]


def main() -> None:
    """Runs the missing plans and prints the table."""
    rest, overrides = split_overrides(sys.argv[1:])
    arguments = _parser().parse_args(rest)
    out = pathlib.Path(arguments.out)
    try:
        storage.make_folder(out)
        plans = [
            (config, pod, load_or_plan(config, pod, out, overrides))
            for config in arguments.configs
            for pod in arguments.pods
        ]
    except UserError as error:
        sys.exit(f"pods: error: {error}")
    print(table(plans))


def load_or_plan(
    config: str, pod: str, out: pathlib.Path, overrides: Sequence[Override] = ()
) -> Plan:
    """Loads the stored plan of a recipe and pod, or runs `bertjax plan` and stores its output.

    Raises:
      UserError: `bertjax plan` failed.
    """
    name = config.removeprefix("configs/").replace(".py", "").replace(":", "_")
    path = out / f"{name}_{pod}.json"
    if not path.exists():
        parts = microbatches(config, pod, overrides)
        print(f"{config} on {pod}, microbatches: {parts}", file=sys.stderr, flush=True)
        words = ["--config", config, "--topology", pod, "--json"]
        words += [f"--config.{field}={value}" for field, value in overrides]
        words.append(f"--config.data.microbatches={parts}")
        done = subprocess.run(
            [sys.executable, "-m", "bertjax", "plan", *words], stdout=subprocess.PIPE, text=True
        )
        if done.returncode:
            raise UserError(f"bertjax plan {' '.join(words)}: exit status {done.returncode}")
        io_files.write_text(path, done.stdout)
    return json.loads(path.read_text(encoding="utf-8"))


def microbatches(config: str, pod: str, overrides: Sequence[Override] = ()) -> int:
    """The smallest number with which a microbatch of a chip fits, or has one row."""
    topology = chips.get_topology(pod)
    longest = max(
        build.phases(load_config(config, overrides)), key=lambda phase: phase.max_seq_length
    )
    rows = longest.batch_size // len(topology.devices)
    tokens = TOKENS.get(config, min(TOKENS.values())) * topology.chip.memory_bytes / 16e9
    divisors = (parts for parts in range(1, rows + 1) if rows % parts == 0)
    return next((d for d in divisors if rows // d * longest.max_seq_length <= tokens), rows)


def table(plans: list[tuple[str, str, Plan]]) -> str:
    """Formats a Markdown table with a row for each recipe and pod."""
    lines = [
        "| recipe | pod | microbatches | memory of a chip | step, at least | sequences/s, at most |"
        " MFU, at most | whole run, at least | chip-hours |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    return "\n".join(lines + [_line(*each) for each in plans])


def _line(config: str, pod: str, plan: Plan) -> str:
    head = f"| `{config.removeprefix('configs/')}` | {pod} |"
    if "run_seconds" not in plan:
        return f"{head} does not fit | | | | | | |"
    # The phase with most of the time.
    step = max(plan["that_fit"], key=lambda each: each["phase"]["steps"] * each["seconds"]["step"])
    settings, capacity, phase = step["settings"], step["memory"]["capacity"], step["phase"]
    shape = f"{phase['batch_size']:,} x {phase['max_seq_length']}"
    remat = "" if settings["remat"] == "none" else f", remat {settings['remat']}"
    numbers = dict.fromkeys(each["settings"]["microbatches"] for each in plan["that_fit"])
    parts = ", ".join(map(str, numbers))
    used = max(each["memory"]["all"] for each in plan["that_fit"])
    cells = [
        f"{parts}{remat}",
        f"{used / 1e9:.1f} of {capacity / 1e9:.0f} GB",
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
        default=CONFIGS,
        help="config files (default: the five of docs/capacity.md)",
    )
    add(
        "--pods",
        nargs="+",
        default=list(PODS),
        help="topologies (default: the four of docs/capacity.md)",
    )
    add("--out", default="experiments/pods", help="folder of stored plans")
    return parser


if __name__ == "__main__":
    main()
