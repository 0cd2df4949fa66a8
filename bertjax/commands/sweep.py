"""Run a sweep of configs: a grid, resumable, several runs at a time, with a table of results."""

import argparse
import json

from bertjax.constraints import PositiveInt, checked
from bertjax.errors import UserError
from bertjax.validation.unused_options import Unread, check_flags

EPILOG = """\
examples:
  bertjax sweep --config experiments/masking_rate.py --workdir runs/masking_rate
  bertjax sweep --config experiments/learning_rate.py --workdir runs/rate --parallel 4 \\
      --config.num_train_steps=200
  bertjax sweep --config experiments/masking_rate_glue.py:rte --data glue --seeds 3 \\
      --workdir runs/masking_rate_rte
  bertjax sweep --status runs/masking_rate
  bertjax sweep --config experiments/masking_rate.py --workdir /shared/masks --emit slurm -- \\
      --partition gpu --gpus 8 | sh

A sweep file is a config file that also defines get_runs(): a list of runs, each a dict of the
fields in which it differs from the config, written by hand or with bertjax/sweeps/grid.py (product,
zipped, draws). A config with a task is fine-tuned, any other is pretrained. Every run is a bertjax
command (--dry_run prints them) in WORKDIR/NAME, where NAME lists the fields that differ:
learning_rate=3e-3,seed=1. A run may set its own "name", and a fine-tuning run its own "init". A
--config.FIELD=VALUE applies to all runs.

--parallel N runs N at a time, each with an equal share of the cores and GPUs, or one TPU chip. A
failed run does not stop the others; its output is in WORKDIR/NAME/run.log. Ctrl-C and SIGTERM let
all runs save. The same command resumes the sweep and retries failed runs. The values of a sweep may
be extended later, but not its fields. Results are in WORKDIR/table.md and WORKDIR/results.json:
settings, best and last metrics of each run.

--emit prints a tools/launch/ command for each missing run, for machines that see the same workdir;
words after -- are passed to the launcher. --status only reads, from any machine: a run with the
state `begun` runs on another machine, or was stopped.
"""

LAUNCHERS = ("slurm", "gke", "tpu", "ssh")

_UNREAD = (
    Unread(
        (
            *("config", "config.*", "workdir", "init", "data", "seeds"),
            *("parallel", "dry_run", "emit"),
        ),
        "status",
        bool,
        "no other option, since it prints the table of a sweep and does nothing else",
        "leave one of them out",
    ),
    Unread(
        ("json",),
        "status",
        lambda workdir: not workdir,
        "a workdir, whose table is printed as JSON",
        "set --status WORKDIR, or read WORKDIR/results.json",
    ),
    Unread(
        ("parallel",),
        "emit",
        bool,
        "none, since it prints commands and runs nothing",
        "leave one of them out",
    ),
)


def main(argv: list[str]) -> None:
    """Runs a sweep, prints its table, or prints the commands of its runs."""
    from bertjax.overrides import split_at_dashes, split_overrides

    before, launcher_words = split_at_dashes(argv)
    rest, overrides = split_overrides(before)
    parser = _parser()
    arguments = parser.parse_args(rest)
    check_flags(_UNREAD, vars(arguments), parser.get_default, overrides)
    if launcher_words and not arguments.emit:
        raise UserError(
            f"words after --: got {launcher_words[0]!r}, expected none without --emit, whose "
            "launcher reads them; leave them out"
        )
    if arguments.status:
        _print_status(arguments.status, arguments.json)
        return
    for name in ("config", "workdir"):
        if getattr(arguments, name) is None:
            raise UserError(f"--{name}: got none, expected one; set it, or --status WORKDIR")
    from bertjax.sweeps import plan, sweep

    options = {name: getattr(arguments, name) for name in ("init", "data", "seeds")}
    planned = plan.load(arguments.config, overrides, options)
    if arguments.emit:
        launcher = (arguments.emit, launcher_words)
        print("\n".join(sweep.launch_commands(planned, arguments.workdir, *launcher)))
    elif arguments.dry_run:
        print("\n".join(sweep.commands(planned, arguments.workdir)))
    else:
        _run(planned, arguments.workdir, arguments.parallel)


def _run(planned, workdir: str, parallel: int) -> None:
    from bertjax.sweeps import scheduler, sweep, table

    found = sweep.run(planned, workdir, parallel=parallel)
    print(table.runs_text(found))
    scheduler.check_failures([one for one in found if one.state != "done"], len(found))


def _print_status(workdir: str, as_json: bool) -> None:
    from bertjax.sweeps import sweep, table

    planned, found = sweep.read(workdir)
    if as_json:
        print(json.dumps(sweep.content(planned, found), indent=2))
    else:
        print(table.runs_text(found))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bertjax sweep",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--config", help="sweep file, as in experiments/masking_rate.py")
    add("--workdir", help="folder of the sweep, with a folder for each run")
    add(
        "--parallel",
        action=checked(PositiveInt),
        default=1,
        metavar="N",
        help="number of runs at a time (default 1)",
    )
    add("--init", metavar="RUN", help="fine-tuning only: the pretrained run")
    add("--data", metavar="DIR", help="fine-tuning only: folder of the task")
    add(
        "--seeds",
        action=checked(PositiveInt),
        metavar="N",
        help="fine-tuning only: number of seeds of each run",
    )
    add("--dry_run", action="store_true", help="print the commands; run and write nothing")
    add("--emit", choices=LAUNCHERS, help="print commands for tools/launch/ instead of running")
    add(
        "--status",
        default="",
        metavar="WORKDIR",
        help="print the table of a sweep, and do nothing else",
    )
    add("--json", action="store_true", help="with --status: as JSON")
    return parser
