"""Run a sweep, read its results, or print the commands of its runs."""

import pathlib
import shlex
from collections.abc import Sequence
from typing import Any

from bertjax.io import storage
from bertjax.io.files import write_json, write_text
from bertjax.runs import bucket_sync
from bertjax.runs.workdir import in_use
from bertjax.sweeps import grid, plan, progress, scheduler, table
from bertjax.sweeps.plan import Sweep
from bertjax.sweeps.progress import Progress, best_of, is_done
from bertjax.sweeps.run import Run


def run(sweep: Sweep, workdir: str, *, parallel: int = 1) -> list[Progress]:
    """Runs all unfinished runs, and writes `table.md` and `results.json` after each.

    Args:
      sweep: See `plan.load`.
      workdir: A path or a URL.
      parallel: Maximum number of runs at a time, each with an equal share of the devices.

    Returns:
      The progress of all runs; `scheduler.check_failures` refuses failed ones.

    Raises:
      UserError: the folder belongs to another sweep, or is in use.
      Interrupted: Ctrl-C or SIGTERM stopped the runs, which have saved.
    """
    folder = bucket_sync.local_folder(workdir, with_checkpoints=True)
    plan.check_runs(sweep, folder)
    with scheduler.hold_workdir(folder, workdir, plan.record(sweep), plan.MUTABLE_FIELDS):
        scheduler.run_all(
            sweep.runs, folder, parallel=parallel, on_change=lambda: _write(sweep, folder)
        )
        return _write(sweep, folder)


def read(workdir: str) -> tuple[Sweep, list[Progress]]:
    """The sweep to which a folder belongs and the progress of its runs; writes nothing.

    Raises:
      UserError: the folder is not a sweep's.
    """
    folder = bucket_sync.local_folder(workdir)
    sweep = plan.read_sweep(folder)
    return sweep, progress.read(sweep.runs, folder)


def content(sweep: Sweep, found: Sequence[Progress]) -> dict[str, Any]:
    """The results as plain values, for JSON."""
    best = best_of(found)
    return {
        "sweep": sweep.spec,
        "metric": sweep.metric,
        "mode": sweep.mode,
        "best": best and best.run.name,
        "runs": {one.run.name: one.content() for one in found},
    }


def _write(sweep: Sweep, folder: pathlib.Path) -> list[Progress]:
    found = progress.read(sweep.runs, folder)
    write_json(folder / "results.json", content(sweep, found))
    write_text(folder / "table.md", table.runs_markdown(found))
    return found


def commands(sweep: Sweep, workdir: str) -> list[str]:
    """The command of each run; of a finished run a comment. Writes nothing."""
    folder = bucket_sync.local_folder(workdir)
    plan.check_runs(sweep, folder)
    return [
        f"# done: {run.name}"
        if is_done(run, folder / run.name)
        else shlex.join(["bertjax", *_words(run, workdir)])
        for run in sweep.runs
    ]


def launch_commands(
    sweep: Sweep, workdir: str, launcher: str, launcher_words: Sequence[str] = ()
) -> list[str]:
    """Commands of `bertjax launch` for the runs that are neither finished nor running here.

    Writes the sweep into the folder, so that `read` finds it.

    Args:
      sweep: See `plan.load`.
      workdir: A path or a URL that is valid on the launched machines too.
      launcher: A command of `bertjax launch`, such as "slurm".
      launcher_words: Further words for the launcher.

    Raises:
      UserError: the folder belongs to another sweep, or is in use.
    """
    folder = bucket_sync.local_folder(workdir)
    plan.check_runs(sweep, folder)
    with scheduler.hold_workdir(folder, workdir, plan.record(sweep), plan.MUTABLE_FIELDS):
        missing = [
            run
            for run in sweep.runs
            if not is_done(run, folder / run.name) and not in_use(folder / run.name)
        ]
    lines = [f"# {len(missing)} of {len(sweep.runs)} runs of {sweep.spec}"]
    labels = grid.labels(folder.name, [run.name for run in sweep.runs])
    for run in missing:
        begin = ["bertjax", "launch", launcher, "--name", labels[run.name], *launcher_words]
        lines.append(f"\n# {run.name}\n{shlex.join([*begin, '--', *_words(run, workdir)])}")
    return lines


def _words(run: Run, workdir: str) -> list[str]:
    """The command of a run with the folder as the user specified it."""
    return run.words(str(storage.to_path(workdir) / run.name))
