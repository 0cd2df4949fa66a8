"""The GLUE suite: fine-tune one encoder on all tasks, optionally with a grid of hyperparameters."""

import itertools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bertjax import build
from bertjax.config import FINE_TUNING, load_config
from bertjax.errors import UserError
from bertjax.io import copies
from bertjax.overrides import Override
from bertjax.sweeps import glue_table, scheduler
from bertjax.sweeps.run import Run, Score, read_best, relative_duration
from bertjax.sweeps.suite import RECIPES, read_recipes
from bertjax.tasks.glue.table import GLUE, glue_task

_EPOCHS = "num_train_epochs"

GRID = {
    "data.batch_size": (16, 32),
    "optimizer.learning_rate": (5e-5, 3e-5, 2e-5),
    _EPOCHS: (2, 3, 4),
}
"""Devlin et al. 2019, appendix A.3, without its learning rate of 4e-5."""

FROM_MNLI = ("rte", "stsb", "mrpc")
"""Tasks that may be initialised from the fine-tuned MNLI encoder (Liu et al. 2019, section 5.1)."""

_ORDER = tuple(sorted((task.name for task in GLUE), key=lambda name: name in FROM_MNLI))
"""Names of all tasks, in the order in which they run and in which the table lists them."""

_FOLDER_NAMES = {
    "data.batch_size": "batch",
    "optimizer.learning_rate": "rate",
    _EPOCHS: "epochs",
}


def run_suite(
    *,
    init: str,
    data: str,
    workdir: str,
    tasks: Sequence[str] = (),
    seeds: int = 3,
    grid: bool = False,
    recipe: str = "",
    from_mnli: bool = False,
    parallel: int = 1,
    config: str = "configs/glue.py",
    overrides: Sequence[Override] = (),
) -> scheduler.SuiteResult:
    """Fine-tunes an encoder on GLUE tasks and writes a table next to published scores.

    Args:
      init: The pretrained run, as of `bertjax finetune`.
      data: Folder of GLUE, or tfds:DIR.
      workdir: Folder of the suite; runs in it are resumed.
      tasks: Names of tasks; all in the data if empty.
      seeds: Number of seeds of each run.
      grid: Whether to run every point of `GRID` and report the best.
      recipe: Variant of the config file's recipe: `small`, `roberta` and so on.
      from_mnli: Whether the tasks of `FROM_MNLI` are initialised from MNLI's best run.
      parallel: Maximum number of runs at a time.
      config: Config file with a recipe for each task.
      overrides: Config overrides of all runs.

    Raises:
      UserError: an argument is invalid, or the folder belongs to another suite.
      Interrupted: Ctrl-C or SIGTERM stopped the runs, which have saved.
    """
    tasks = find_tasks(str(copies.local_copy(data)), tasks)
    _check_from_mnli(from_mnli, tasks)
    _check_overrides(dict(overrides), grid)
    specs = {task: f"{config}:{task}" + (recipe and f",{recipe}") for task in _ORDER}
    recipes = {task: specs[task] for task in tasks}
    for spec in recipes.values():
        build.check(load_config(spec, overrides, FINE_TUNING))
    options = {"init": init, "data": data, "seeds": seeds}
    runs = plan(recipes, options, overrides, grid=grid, from_mnli=from_mnli)
    record = {"init": init, "recipe": recipe, "grid": grid, "from_mnli": from_mnli}
    record["overrides"] = [f"{name}={value}" for name, value in overrides]
    record[RECIPES] = read_recipes(specs)
    return scheduler.run_suite(
        runs,
        workdir,
        {"glue": record},
        parallel=parallel,
        write=lambda folder: _write(folder, grid),
    )


def find_tasks(data: str, names: Sequence[str] = ()) -> list[str]:
    """The tasks to run, with those of `FROM_MNLI` last.

    Args:
      data: See `tasks/glue/files.py`.
      names: Names of tasks; empty for all that are in the data.

    Raises:
      UserError: a task does not exist, or there is none in the data.
    """
    if names:
        known = [glue_task(name).name for name in names]
        return [name for name in _ORDER if name in known]
    if data.startswith("tfds:"):
        return list(_ORDER)
    present = [name for name in _ORDER if (pathlib.Path(data) / glue_task(name).folder).is_dir()]
    if not present:
        raise UserError(
            f"{data} holds no GLUE task: --data requires the folder that holds CoLA/ etc."
        )
    return present


def plan(
    recipes: Mapping[str, str],
    options: Mapping[str, Any],
    overrides: Sequence[Override] = (),
    *,
    grid: bool = False,
    from_mnli: bool = False,
) -> list[Run]:
    """The runs of a suite, in the order in which they start.

    Args:
      recipes: The config of each task.
      options: Flags `init`, `data` and `seeds` of `bertjax finetune`.
      overrides: Config overrides of all runs.
      grid: Whether to run every point of `GRID`.
      from_mnli: Whether the tasks of `FROM_MNLI` are initialised from MNLI's best run.
    """
    runs: list[Run] = []
    for task, point in itertools.product(recipes, _points(grid)):
        # Later runs load MNLI's encoder from a checkpoint, which fine-tuning deletes by default.
        keep = [("keep_checkpoints", "true")] if from_mnli and task == "mnli" else []
        config = load_config(recipes[task], (*overrides, *point), FINE_TUNING)
        run = Run(
            name=_run_name(task, point),
            verb="finetune",
            options={"config": recipes[task], **options},
            settings=dict(point),
            overrides=(*keep, *overrides),
            work=relative_duration(_train_files(options["data"], task), config),
            init_from=_names_of(runs, "mnli") if from_mnli and task in FROM_MNLI else (),
        )
        runs.append(run)
    return runs


def _points(grid: bool) -> list[tuple[tuple[str, Any], ...]]:
    """The points of `GRID`, each as pairs of a field and a value; without a grid an empty one."""
    axes = [[(name, value) for value in values] for name, values in GRID.items()]
    return list(itertools.product(*axes)) if grid else [()]


def _run_name(task: str, point: Sequence[tuple[str, Any]]) -> str:
    folder = ",".join(f"{_FOLDER_NAMES[name]}_{value:g}" for name, value in point)
    return f"{task}/{folder}" if folder else task


def _names_of(runs: Sequence[Run], task: str) -> tuple[str, ...]:
    return tuple(run.name for run in runs if task_of(run) == task)


def task_of(run: Run) -> str:
    """The task of a run of the suite."""
    return run.name.partition("/")[0]


def _train_files(data: str, task: str) -> Iterator[pathlib.Path]:
    """The files of training examples; none if the data is not a local folder."""
    return (pathlib.Path(data) / glue_task(task).folder).glob("*train*")


def read_scores(workdir: pathlib.Path, grid: bool) -> list[Score]:
    """The best finished run of every task that has one in a folder, also by earlier calls."""
    points = _points(grid)
    scores = []
    for task in _ORDER:
        runs = [Run(_run_name(task, point), "finetune", {}, dict(point)) for point in points]
        scores.append(read_best(task, runs, workdir))
    return [score for score in scores if score is not None]


def _write(folder: pathlib.Path, grid: bool) -> list[Score]:
    if scores := read_scores(folder, grid):
        missing = glue_table.write_submission(folder / "submission.zip", scores)
        content = glue_table.content(scores) | {"missing_of_server": missing}
        scheduler.write_table(folder, glue_table.rows(scores), content)
    return scores


def _check_from_mnli(from_mnli: bool, tasks: Sequence[str]) -> None:
    if not from_mnli:
        return
    if "mnli" not in tasks:
        raise UserError(
            "--from_mnli requires mnli among the tasks: name it, or leave --from_mnli out"
        )
    if not set(FROM_MNLI) & set(tasks):
        raise UserError(
            f"--from_mnli has no effect: got tasks {', '.join(tasks)}, expected one of "
            f"{', '.join(FROM_MNLI)}, which are initialised from MNLI's encoder; name one, or "
            "leave --from_mnli out"
        )


def _check_overrides(overrides: Mapping[str, str], grid: bool) -> None:
    """Refuses fields in which the runs differ: an override would make all runs the same."""
    varied = {"task.dataset": "--tasks"} | (dict.fromkeys(GRID, "--grid") if grid else {})
    for field in filter(varied.get, overrides):
        raise UserError(
            f"--config.{field}: got {overrides[field]}, expected none, since {varied[field]} sets "
            f"it in every run; leave --config.{field} out"
        )
