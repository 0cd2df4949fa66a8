"""Run a sweep of configs: resumable, several runs at a time, with a table of results."""

import json
from typing import TYPE_CHECKING

from bertjax.commands import _flags
from bertjax.commands.launch import SCRIPTS
from bertjax.errors import UserError

if TYPE_CHECKING:
    import argparse

    from bertjax.sweeps.plan import Sweep

GROUP = "Train"
COMMANDS = ("run", "status", "emit")

_FILE = """\
A sweep file is a config file that also defines get_runs(): a list of runs, each a dict of the
fields in which it differs from the config, written by hand or with bertjax/sweeps/grid.py (product,
zip_fields, random_search). A config with a task is fine-tuned, any other is pretrained. Every run
is a bertjax command in WORKDIR/NAME, where NAME lists the fields that differ:
learning_rate=3e-3,seed=1. A run may set its own "name", and a fine-tuning run its own "init". A
--config.FIELD=VALUE applies to all runs.
"""

_RUN = f"""\
examples:
  bertjax sweep run --config experiments/masking_rate.py --workdir runs/masking_rate
  bertjax sweep run --config experiments/learning_rate.py --workdir runs/rate --parallel 4 \\
      --config.num_train_steps=200
  bertjax sweep run --config experiments/masking_rate_glue.py:rte --data glue --seeds 3 \\
      --workdir runs/masking_rate_rte

{_FILE}
--parallel N runs N at a time, each with an equal share of the cores and GPUs, or one TPU chip. A
failed run does not stop the others; its output is in WORKDIR/NAME/run.log. On Ctrl-C or
SIGTERM all runs save a checkpoint and end. The same command resumes the sweep and retries failed
runs. The values of a sweep may be extended later, but not its fields. Results are in
WORKDIR/table.md and WORKDIR/results.json: settings, best and last metrics of each run.
"""

_STATUS = """\
examples:
  bertjax sweep status --workdir runs/masking_rate
  bertjax sweep status --workdir runs/masking_rate --json

Writes nothing, and runs on any machine that can read the folder. A run with the state
`incomplete` runs on another machine, or was stopped.
"""

_EMIT = f"""\
examples:
  bertjax sweep emit slurm --config experiments/masking_rate.py --workdir /shared/masks -- \\
      --partition gpu --gpus 8 | sh

Prints a `bertjax launch` command for each missing run, for machines that share the workdir; words
after -- are options of the launcher.

{_FILE}"""

_RENAMED = {
    "--status": "bertjax sweep status --workdir WORKDIR",
    "--emit": "bertjax sweep emit LAUNCHER",
    "--config": "an option of bertjax sweep run",
}


def main(argv: list[str]) -> None:
    """Runs a sweep, prints its table, or prints the commands that launch its runs."""
    from bertjax.overrides import split_at_dashes, split_overrides

    before, launcher_words = split_at_dashes(argv)
    rest, overrides = split_overrides(before)
    arguments = parser().parse_args(rest)
    if launcher_words and arguments.command != "emit":
        raise UserError(
            f"words after --: got {launcher_words[0]!r}, expected none: only `bertjax sweep emit` "
            "passes them to a launcher; leave them out"
        )
    arguments.run(arguments, overrides, launcher_words)


def _run(arguments: "argparse.Namespace", overrides: list, _: list[str]) -> None:
    from bertjax.sweeps import scheduler, sweep, table

    planned = _load(arguments, overrides)
    if arguments.dry_run:
        print("\n".join(sweep.commands(planned, arguments.workdir)))
        return
    found = sweep.run(planned, arguments.workdir, parallel=arguments.parallel)
    print(table.runs_text(found))
    scheduler.check_failures([one for one in found if one.state != "done"], len(found))


def _emit(arguments: "argparse.Namespace", overrides: list, launcher_words: list[str]) -> None:
    from bertjax.sweeps import sweep

    planned = _load(arguments, overrides)
    launcher = (arguments.launcher, launcher_words)
    print("\n".join(sweep.launch_commands(planned, arguments.workdir, *launcher)))


def _status(arguments: "argparse.Namespace", overrides: list, _: list[str]) -> None:
    from bertjax.sweeps import sweep, table

    if overrides:
        raise UserError(f"--config.{overrides[0][0]} has no effect on a status; leave it out")
    planned, found = sweep.read(arguments.workdir)
    if arguments.json:
        print(json.dumps(sweep.content(planned, found), indent=2))
    else:
        print(table.runs_text(found))


def _load(arguments: "argparse.Namespace", overrides: list) -> "Sweep":
    from bertjax.sweeps import plan

    options = {name: getattr(arguments, name) for name in ("init", "data", "seeds")}
    return plan.load(arguments.config, overrides, options)


def parser() -> _flags.Parser:
    """Returns the parser of the command line."""
    parser = _flags.Parser("bertjax sweep", __doc__, renamed=_RENAMED)
    commands = parser.add_commands()
    run = _flags.add_command(commands, "run", __doc__, _RUN, _run)
    _add_sweep(run)
    _flags.add_parallel(run)
    run.add_argument(
        "--dry_run", action="store_true", help="print the commands; run and write nothing"
    )
    status = _flags.add_command(commands, "status", "Print the table of a sweep.", _STATUS, _status)
    status.add_argument("--workdir", required=True, metavar="DIR", help="folder of the sweep")
    _flags.add_json(status)
    emit = _flags.add_command(
        commands, "emit", "Print commands that launch the runs on a cluster.", _EMIT, _emit
    )
    emit.add_argument("launcher", choices=SCRIPTS, help="launcher, as in bertjax launch")
    _add_sweep(emit)
    return parser


def _add_sweep(parser: _flags.Parser) -> None:
    add = parser.add_argument
    add(
        "--config",
        required=True,
        metavar="FILE",
        help="sweep file, as in experiments/masking_rate.py",
    )
    add(
        "--workdir",
        required=True,
        metavar="DIR",
        help="folder of the sweep, with a folder for each run",
    )
    add("--init", metavar="RUN", help="fine-tuning only: the pretrained run")
    add("--data", metavar="DIR", help="fine-tuning only: folder of the task")
    _flags.add_seeds(parser, None, "fine-tuning run")
