"""Measures the time from the start of a process to its first training step; prints JSON.

    tools/run python tools/measure_startup.py --corpus corpus/ --config bert:mini

One step of `bertjax pretrain` runs in a new process and a new workdir, in turns with `bertjax
--help` and with the imports of `bertjax pretrain` alone. The first, unmeasured round fills the
cache of compiled programs. All values are seconds of wall time, medians over the rounds:

  help        `bertjax --help`, the whole process
  imports     an interpreter that imports what `bertjax pretrain` imports, the whole process
  described   from the start until the run is described: imports, data and shapes of parameters
  compile     of the step, read from the cache: `goodput/compile` of the run
  first_step  from the start until the metrics of step 1 are printed
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from bertjax.train.metric_records import read_metrics

PYTHON = [sys.executable, "-m"]
IMPORTS = "import bertjax.commands.pretrain, bertjax.inference.fill_mask, bertjax.runs.pretrain"


def main() -> None:
    """Runs the rounds and prints their medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", required=True, help="a folder that `bertjax prepare` wrote")
    parser.add_argument("--config", default="bert:mini")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    measured = [measure(arguments) for _ in range(arguments.rounds + 1)][1:]
    result = {
        "settings": vars(arguments),
        "cores": os.cpu_count(),
        "seconds": {
            name: round(statistics.median(row[name] for row in measured), 3) for name in measured[0]
        },
        "rounds": [{name: round(value, 3) for name, value in row.items()} for row in measured],
    }
    print(json.dumps(result, indent=2))


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    """Measures each process once."""
    return {
        "help": seconds([*PYTHON, "bertjax", "--help"]),
        "imports": seconds([sys.executable, "-c", IMPORTS]),
        **first_step(arguments.config, arguments.corpus),
    }


def seconds(command: list[str]) -> float:
    """Wall time of a process."""
    start = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - start


def first_step(config: str, corpus: str) -> dict[str, float]:
    """Trains one step in a new process, and times the lines that it prints."""
    fields = {
        "data.corpus": corpus,
        "data.phases": (),
        "data.max_seq_length": 128,
        "data.batch_size": 32,
        "num_train_steps": 1,
        "log_every": 1,
        "eval_every": 0,
        "eval_examples": 32,
        "checkpoint_every": 0,
        "keep_best": 0,
    }
    overrides = [f"--config.{name}={value}" for name, value in fields.items()]
    with tempfile.TemporaryDirectory() as workdir:
        command = [*PYTHON, "bertjax", "pretrain", "--config", config, "--workdir", workdir]
        start = time.monotonic()
        process = subprocess.Popen(
            [*command, *overrides],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        marks: dict[str, float] = {}
        lines = []
        for line in process.stdout:
            lines.append(line)
            for name, begin in (("described", "phase "), ("first_step", "step 1/1 ")):
                if line.startswith(begin):
                    marks.setdefault(name, time.monotonic() - start)
        if process.wait():
            sys.exit("".join(lines))
        compile_seconds = max(row.get("goodput/compile", 0.0) for row in read_metrics(workdir))
    return {"described": marks["described"], "compile": compile_seconds, **marks}


if __name__ == "__main__":
    main()
