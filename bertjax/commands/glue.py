"""Fine-tune an encoder on all GLUE tasks and compare its scores with published ones."""

import argparse
import json
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence

from bertjax.constraints import PositiveInt, checked
from bertjax.errors import UserError

EPILOG = """\
examples:
  bertjax glue --init runs/bert --data glue --workdir runs/glue
  bertjax glue --init runs/mini --data glue --workdir runs/glue --recipe small --seeds 5
  bertjax glue --init runs/roberta --data glue --workdir runs/glue --recipe roberta --from_mnli
  bertjax glue --init runs/bert --data glue --workdir runs/glue --tasks cola,rte --grid --parallel 4

Each task is a `bertjax finetune` of its own, in WORKDIR/TASK, with the recipe of configs/glue.py; a
--config.FIELD=VALUE goes to all of them. --grid tries batches of 16 and 32, rates of 5e-5, 3e-5 and
2e-5 and 2 to 4 epochs, each with all seeds, and reports the best by the median dev score, chosen on
the scores that it reports. With --from_mnli, RTE, STS-B and MRPC begin with what MNLI taught. With
--parallel, so many run side by side: each with one GPU, or its share of the cores.

In the workdir: table.md and results.json (medians, spread, seeds, the average as the leaderboard
takes it), and submission.zip for the evaluation server. The same command continues where it was
stopped.
"""


def main(argv: list[str]) -> None:
    """Runs what is missing, then prints the table."""
    from bertjax.config import split_overrides
    from bertjax.runs.workdir import claim
    from bertjax.runtime.signals import sigterm_as_interrupt

    rest, overrides = split_overrides(argv)
    arguments = _parser().parse_args(rest)
    from bertjax.io import copies
    from bertjax.runs import bucket_sync
    from bertjax.runtime.progress import progress_display
    from bertjax.sweeps import glue, processes

    workdir = bucket_sync.on_this_machine(arguments.workdir, alone=True)
    tasks = glue.tasks_of(str(copies.local_copy(arguments.data)), arguments.tasks)
    if arguments.from_mnli and "mnli" not in tasks:
        raise UserError(
            "--from_mnli requires mnli among the tasks: name it, or leave --from_mnli out"
        )
    if arguments.from_mnli and not set(glue.FROM_MNLI) & set(tasks):
        named = ", ".join(glue.FROM_MNLI)
        raise UserError(
            f"--from_mnli has no effect: got tasks {', '.join(tasks)}, expected one of {named}, "
            "which begin with MNLI's encoder; name one, or leave --from_mnli out"
        )
    _check_overrides(arguments, dict(overrides))
    _check_recipes(arguments, tasks, overrides)
    runs = glue.plan(tasks, workdir, grid=arguments.grid)
    settled = {name: getattr(arguments, name) for name in ("init", "recipe", "grid", "from_mnli")}
    settled["overrides"] = [f"{name}={value}" for name, value in overrides]
    mirrored = bucket_sync.synced(workdir, arguments.workdir)
    with claim(workdir, {"glue": settled}), mirrored, sigterm_as_interrupt():
        with progress_display() as display:
            failed = _Suite(arguments, overrides, runs, display).run(runs)
        scores = glue.collect(runs)
        if scores:
            _write(workdir, scores)
    processes.check_all_done(failed, len(runs))


class _Suite:
    """Which runs begin with what, and how they are typed."""

    def __init__(self, arguments: argparse.Namespace, overrides: Sequence, runs: Sequence, display):
        from bertjax.sweeps import glue
        from bertjax.sweeps.processes import Processes

        self._arguments, self._overrides = arguments, overrides
        self._works = {run.workdir: glue.work(arguments.data, run) for run in runs}
        self._processes = Processes(
            works=list(self._works.values()),
            seeds=arguments.seeds,
            parallel=arguments.parallel,
            display=display,
        )

    def run(self, runs: Sequence) -> list[pathlib.Path]:
        """Runs what is not finished; returns the folders of what failed."""
        from bertjax.sweeps import glue

        later = glue.FROM_MNLI if self._arguments.from_mnli else ()
        first = [run for run in runs if run.task not in later]
        rest = [run for run in runs if run.task in later]
        failed = self._all(first, lambda run: self._arguments.init)
        if not rest:
            return failed
        mnli = [score for score in glue.collect(first) if score.run.task == "mnli"]
        if not mnli:
            return [*failed, *(run.workdir for run in rest)]
        taught = str(glue.best_seed(mnli[0].run))
        return failed + self._all(rest, lambda run: taught)

    def _all(self, runs: Sequence, init: Callable) -> list[pathlib.Path]:
        from bertjax.sweeps.glue import folder
        from bertjax.sweeps.processes import Process

        return self._processes.run(
            [
                Process(
                    " ".join(filter(None, [run.task, folder(run.point)])),
                    run.workdir,
                    self._command(run, init(run)),
                    self._works[run.workdir],
                )
                for run in runs
            ]
        )

    def _command(self, run, init: str) -> list[str]:
        from bertjax.sweeps import processes

        arguments = self._arguments
        config = f"{arguments.config}:{run.task}" + (arguments.recipe and f",{arguments.recipe}")
        words = processes.command(
            config=config,
            init=init,
            data=arguments.data,
            workdir=run.workdir,
            seeds=arguments.seeds,
        )
        if arguments.from_mnli and run.task == "mnli":
            words.append("--config.keep_checkpoints=true")
        fields = [*run.point, *self._overrides]
        return words + [f"--config.{name}={value}" for name, value in fields]


def _check_overrides(arguments: argparse.Namespace, overrides: Mapping[str, str]) -> None:
    """Refuses fields that tell the runs apart: an override would make them all the same."""
    from bertjax.sweeps import glue

    varied = {"task.dataset": "--tasks"}
    if arguments.grid:
        varied |= dict.fromkeys(glue.GRID, "--grid")
    for field in filter(varied.get, overrides):
        raise UserError(
            f"--config.{field}: got {overrides[field]}, expected none, since {varied[field]} sets "
            f"it in every run; leave --config.{field} out"
        )


def _check_recipes(arguments: argparse.Namespace, tasks: Sequence[str], overrides) -> None:
    """Refuses a mistake in any recipe before the first run starts."""
    from bertjax import build
    from bertjax.config import FINE_TUNING, load_config

    for task in tasks:
        recipe = f"{arguments.config}:{task}" + (arguments.recipe and f",{arguments.recipe}")
        build.check(load_config(recipe, overrides, FINE_TUNING))


def _write(workdir: pathlib.Path, scores: Sequence) -> None:
    from bertjax.io.files import write_json
    from bertjax.sweeps import glue, glue_table

    table = glue_table.rows(scores)
    (workdir / "table.md").write_text(glue_table.markdown(table), encoding="utf-8")
    missing = glue.submission(workdir / "submission.zip", scores)
    write_json(
        workdir / "results.json", glue_table.content(scores) | {"missing_of_server": missing}
    )
    print(glue_table.text(table))
    if missing:
        told = (
            f"{workdir / 'submission.zip'} lacks what the server requires too: {', '.join(missing)}"
        )
        print(told, file=sys.stderr)
    print(json.dumps({"average": glue.average(scores), "tasks": len(scores)}))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bertjax glue",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--init", required=True, metavar="RUN", help="as of bertjax finetune")
    add("--data", required=True, help="folder of GLUE, or tfds:DIR")
    add("--workdir", required=True, help="folder for what comes out")
    add("--tasks", default="", help="names with commas between (default: all that are in the data)")
    add(
        "--seeds",
        action=checked(PositiveInt),
        default=3,
        metavar="N",
        help="of each run (default 3)",
    )
    add("--grid", action="store_true", help="try batches, rates and numbers of epochs")
    add("--recipe", default="", help="small, tiny, roberta, albert or electra (default: BERT's)")
    add("--from_mnli", action="store_true", help="RTE, STS-B and MRPC begin with MNLI's encoder")
    add(
        "--parallel",
        action=checked(PositiveInt),
        default=1,
        metavar="N",
        help="runs side by side (default 1)",
    )
    add("--config", default="configs/glue.py", help="where the recipes are")
    return parser
