"""Run a sweep of configs: a grid, resumable, several runs at a time, with a table of results."""

import argparse
import contextlib
import json
import pathlib
import shlex
import sys
from collections.abc import Sequence

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

A sweep file is a config file that defines get_runs() too: a list of runs, each a dict of the fields
in which it differs, as bertjax/sweeps/grid.py makes them (product, zipped, draws) or written by
hand. With a task it fine-tunes, else it pretrains. Every run is an ordinary command (--dry_run
shows them) in WORKDIR/NAME, where NAME says what differs: learning_rate=3e-3,seed=1. A run of
fine-tuning may have its own "init", and any run its own "name". A --config.FIELD=VALUE goes to all.

With --parallel, so many run side by side, each with its share of the cores and of the GPUs, or one
TPU chip. A run that fails stops no other; what it said is in WORKDIR/NAME/run.log. Ctrl-C and
SIGTERM let all runs save. The same command continues with what is missing, and tries again what
failed; a sweep may grow by values, not by other fields. In the workdir: table.md and results.json,
each run's settings, best and last metrics.

--emit writes the runs that are missing as commands of tools/launch/, for a machine to which the
workdir is the same folder; words behind -- go to the launcher. --status writes nothing, so it reads
a sweep from anywhere: `begun` is a run that another machine has, or that was stopped.
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
    """Runs what is missing, shows what there is, or writes commands."""
    from bertjax.overrides import split_at_dashes, split_overrides

    before, launcher_words = split_at_dashes(argv)
    rest, overrides = split_overrides(before)
    parser = _parser()
    arguments = parser.parse_args(rest)
    check_flags(_UNREAD, vars(arguments), parser.get_default, overrides)
    if launcher_words and not arguments.emit:
        raise UserError(f"words behind -- are of a launcher: {launcher_words[0]!r} requires --emit")
    if arguments.status:
        _show_status(arguments)
        return
    for name in ("config", "workdir"):
        if getattr(arguments, name) is None:
            raise UserError(f"--{name} is expected, or --status WORKDIR")
    _sweep(arguments, overrides, launcher_words)


def _sweep(arguments: argparse.Namespace, overrides: Sequence, launcher_words: list[str]) -> None:
    from bertjax.runs import bucket_sync
    from bertjax.runs.workdir import claim
    from bertjax.runtime.signals import sigterm_as_interrupt
    from bertjax.sweeps import plan as sweeps_plan

    options = {name: getattr(arguments, name) for name in ("init", "data", "seeds")}
    sweep = sweeps_plan.load(arguments.config, overrides, options)
    runs_here = not (arguments.dry_run or arguments.emit)
    workdir = bucket_sync.on_this_machine(arguments.workdir, alone=runs_here)
    sweeps_plan.check_runs(sweep, workdir)
    held = mirrored = contextlib.nullcontext()
    if not arguments.dry_run:
        held = claim(workdir, sweeps_plan.record(sweep), free=sweeps_plan.FREE)
        mirrored = bucket_sync.synced(workdir, arguments.workdir)
    with held, mirrored, sigterm_as_interrupt():
        if arguments.emit:
            _emit(sweep, arguments, workdir, launcher_words)
        elif arguments.dry_run:
            _show_commands(sweep, arguments.workdir, workdir)
        else:
            _run(sweep, workdir, arguments.parallel)


def _run(sweep, workdir: pathlib.Path, parallel: int) -> None:
    from bertjax.sweeps import processes, progress
    from bertjax.sweeps import table as sweeps_table
    from bertjax.sweeps.screen import screen_for

    with screen_for(sweep, workdir) as screen:
        jobs = {_job(sweep, run, workdir): run for run in _missing(sweep, workdir)}

        def begun(job) -> None:
            progress.forget_failure(job.workdir)
            screen.begun(jobs[job])

        def ended(job, status: int, seconds: float) -> None:
            if not _is_done(sweep, jobs[job], job.workdir):
                progress.record_failure(job.workdir, job.last_words(status), status)
            screen.ended(jobs[job], seconds)
            _write(sweep, workdir)

        watched = {"begun": begun, "ended": ended, "looked": screen.looked}
        signal = processes.run(jobs, parallel, **watched)
    found = _write(sweep, workdir)
    if signal:
        print("stopped; the same command continues from there", file=sys.stderr)
        raise SystemExit(128 + signal)
    print(sweeps_table.text(sweep, found))
    if failed := sweeps_table.failures(found):
        raise UserError(f"{len(failed)} of {len(found)} runs failed, the others are done")


def _job(sweep, run, workdir: pathlib.Path):
    from bertjax.sweeps import plan as sweeps_plan
    from bertjax.sweeps import progress
    from bertjax.sweeps.processes import Job

    folder = workdir / run.name
    words = sweeps_plan.words(sweep, run, str(folder))
    return Job(run.name, _process(words), folder, folder / progress.LOG)


def _process(words: Sequence[str]) -> tuple[str, ...]:
    return (sys.executable, "-m", "bertjax", *words)


def _missing(sweep, workdir: pathlib.Path) -> list:
    return [run for run in sweep.runs if not _is_done(sweep, run, workdir / run.name)]


def _is_done(sweep, run, folder: pathlib.Path) -> bool:
    from bertjax.runs.workdir import read_summary
    from bertjax.sweeps import progress

    return progress.is_done(sweep, run, read_summary(folder))


def _write(sweep, workdir: pathlib.Path) -> list:
    """Writes what is known by now, so that a sweep that is killed has its table too."""
    from bertjax.io.files import write_json, write_text
    from bertjax.sweeps import progress
    from bertjax.sweeps import table as sweeps_table

    found = progress.read(sweep, workdir)
    write_json(workdir / "results.json", sweeps_table.content(sweep, found))
    write_text(workdir / "table.md", sweeps_table.markdown(sweep, found))
    return found


def _show_status(arguments: argparse.Namespace) -> None:
    from bertjax.runs import bucket_sync
    from bertjax.sweeps import plan as sweeps_plan
    from bertjax.sweeps import progress
    from bertjax.sweeps import table as sweeps_table

    workdir = bucket_sync.on_this_machine(arguments.status)
    sweep = sweeps_plan.recorded(workdir)
    found = progress.read(sweep, workdir)
    if arguments.json:
        print(json.dumps(sweeps_table.content(sweep, found), indent=2))
    else:
        print(sweeps_table.text(sweep, found))


def _show_commands(sweep, name: str, workdir: pathlib.Path) -> None:
    """One command a run, to be read or typed; of those that are done, only that they are."""
    for run in sweep.runs:
        command = shlex.join(["bertjax", *_words(sweep, run, name)])
        print(f"# done: {run.name}" if _is_done(sweep, run, workdir / run.name) else command)


def _words(sweep, run, name: str) -> list[str]:
    """The command of a run, in a sweep's folder as the user calls it."""
    from bertjax.io import storage
    from bertjax.sweeps import plan as sweeps_plan

    return sweeps_plan.words(sweep, run, str(storage.to_path(name) / run.name))


def _emit(sweep, arguments: argparse.Namespace, workdir: pathlib.Path, more: list[str]) -> None:
    """A shell script: the launcher for every run that is neither done nor continuing here."""
    from bertjax.runs.workdir import in_use
    from bertjax.sweeps import grid

    missing = [run for run in _missing(sweep, workdir) if not in_use(workdir / run.name)]
    print(f"# {len(missing)} of {len(sweep.runs)} runs of {sweep.spec}; type them in the checkout")
    for run in missing:
        name = grid.label(workdir.name, run.name)
        begin = [f"tools/launch/{arguments.emit}", "--name", name, *more]
        words = _words(sweep, run, arguments.workdir)
        print(f"\n# {run.name}\n{shlex.join([*begin, '--', *words])}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bertjax sweep",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--config", help="sweep file, as in experiments/masking_rate.py")
    add("--workdir", help="folder of the sweep: a folder in it for each run")
    add(
        "--parallel",
        action=checked(PositiveInt),
        default=1,
        metavar="N",
        help="runs side by side (default 1)",
    )
    add("--init", metavar="RUN", help="of fine-tuning: as of bertjax finetune")
    add("--data", metavar="DIR", help="likewise")
    add("--seeds", action=checked(PositiveInt), metavar="N", help="likewise: of each run")
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
