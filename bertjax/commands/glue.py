"""Fine-tune an encoder on all of GLUE and put its scores beside the published ones."""

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
takes it), and submission.zip for the evaluation server. The same command goes on where it was
stopped.
"""


def main(argv: list[str]) -> None:
    """Runs what is missing, then prints the table."""
    from bertjax.config import split_overrides
    from bertjax.side_by_side import sigterm_as_control_c
    from bertjax.train.workdir import claim

    rest, overrides = split_overrides(argv)
    arguments = _parser().parse_args(rest)
    from bertjax import glue_suite, suite_processes
    from bertjax.data import copies
    from bertjax.progress_display import progress_display
    from bertjax.train import mirror

    workdir = mirror.on_this_machine(arguments.workdir, alone=True)
    tasks = glue_suite.tasks_of(str(copies.fetched(arguments.data)), arguments.tasks)
    if arguments.from_mnli and "mnli" not in tasks:
        raise UserError("--from_mnli wants mnli among the tasks: name it, or leave --from_mnli out")
    if arguments.from_mnli and not set(glue_suite.FROM_MNLI) & set(tasks):
        named = ", ".join(glue_suite.FROM_MNLI)
        raise UserError(
            f"--from_mnli has no effect: got tasks {', '.join(tasks)}, expected one of {named}, "
            "which begin with MNLI's encoder; name one, or leave --from_mnli out"
        )
    _check_overrides(arguments, dict(overrides))
    _check_recipes(arguments, tasks, overrides)
    runs = glue_suite.plan(tasks, workdir, grid=arguments.grid)
    settled = {name: getattr(arguments, name) for name in ("init", "recipe", "grid", "from_mnli")}
    settled["overrides"] = [f"{name}={value}" for name, value in overrides]
    mirrored = mirror.mirrored(workdir, arguments.workdir)
    with claim(workdir, {"glue": settled}), mirrored, sigterm_as_control_c():
        with progress_display() as display:
            failed = _Suite(arguments, overrides, runs, display).run(runs)
        scores = glue_suite.collect(runs)
        if scores:
            _write(workdir, scores)
    suite_processes.check_all_done(failed, len(runs))


class _Suite:
    """Which runs begin with what, and how they are typed."""

    def __init__(self, arguments: argparse.Namespace, overrides: Sequence, runs: Sequence, display):
        from bertjax import glue_suite
        from bertjax.suite_processes import Processes

        self._arguments, self._overrides = arguments, overrides
        self._works = {run.workdir: glue_suite.work(arguments.data, run) for run in runs}
        self._processes = Processes(
            works=list(self._works.values()),
            seeds=arguments.seeds,
            parallel=arguments.parallel,
            display=display,
        )

    def run(self, runs: Sequence) -> list[pathlib.Path]:
        """Runs what is not finished; returns the folders of what failed."""
        from bertjax import glue_suite

        later = glue_suite.FROM_MNLI if self._arguments.from_mnli else ()
        first = [run for run in runs if run.task not in later]
        rest = [run for run in runs if run.task in later]
        failed = self._all(first, lambda run: self._arguments.init)
        if not rest:
            return failed
        mnli = [score for score in glue_suite.collect(first) if score.run.task == "mnli"]
        if not mnli:
            return [*failed, *(run.workdir for run in rest)]
        taught = str(glue_suite.best_seed(mnli[0].run))
        return failed + self._all(rest, lambda run: taught)

    def _all(self, runs: Sequence, init: Callable) -> list[pathlib.Path]:
        from bertjax.glue_suite import folder
        from bertjax.suite_processes import Process

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
        from bertjax import suite_processes

        arguments = self._arguments
        config = f"{arguments.config}:{run.task}" + (arguments.recipe and f",{arguments.recipe}")
        words = suite_processes.command(
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
    from bertjax import glue_suite

    varied = {"task.dataset": "--tasks"}
    if arguments.grid:
        varied |= dict.fromkeys(glue_suite.GRID, "--grid")
    for field in filter(varied.get, overrides):
        raise UserError(
            f"--config.{field}: got {overrides[field]}, expected none, since {varied[field]} sets "
            f"it in every run; leave --config.{field} out"
        )


def _check_recipes(arguments: argparse.Namespace, tasks: Sequence[str], overrides) -> None:
    """Refuses a mistake in any recipe before the first run starts."""
    from bertjax import build
    from bertjax.config import load_config
    from bertjax.config_kinds import FINE_TUNING

    for task in tasks:
        recipe = f"{arguments.config}:{task}" + (arguments.recipe and f",{arguments.recipe}")
        build.check(load_config(recipe, overrides, FINE_TUNING))


def _write(workdir: pathlib.Path, scores: Sequence) -> None:
    from bertjax import glue_suite, suite_table
    from bertjax.train.files import write_json

    table = suite_table.rows(scores)
    (workdir / "table.md").write_text(suite_table.markdown(table), encoding="utf-8")
    missing = glue_suite.submission(workdir / "submission.zip", scores)
    write_json(
        workdir / "results.json", suite_table.content(scores) | {"missing_of_server": missing}
    )
    print(suite_table.text(table))
    if missing:
        told = f"{workdir / 'submission.zip'} lacks what the server wants too: {', '.join(missing)}"
        print(told, file=sys.stderr)
    print(json.dumps({"average": glue_suite.average(scores), "tasks": len(scores)}))


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
