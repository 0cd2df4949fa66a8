"""The SuperGLUE suite: fine-tune one encoder on all tasks; table, average, submission."""

import pathlib
import statistics
from collections.abc import Sequence

from bertjax import build
from bertjax.config import FINE_TUNING, load_config
from bertjax.errors import UserError
from bertjax.io import copies
from bertjax.overrides import Override
from bertjax.sweeps import scheduler, suite
from bertjax.sweeps.run import Run, Score, read_score, relative_duration, suite_content
from bertjax.sweeps.suite import RECIPES, read_recipes
from bertjax.tasks.superglue.table import TASKS, superglue_task

_FIELD = "task.dataset"
_HEADER = ["task", "metrics", "median", "spread", "seeds"]


def run_suite(
    *,
    init: str,
    data: str,
    workdir: str,
    tasks: Sequence[str] = (),
    seeds: int = 3,
    recipe: str = "",
    parallel: int = 1,
    config: str = "configs/superglue.py",
    overrides: Sequence[Override] = (),
) -> scheduler.SuiteResult:
    """Fine-tunes an encoder on SuperGLUE tasks, writes a table of dev scores and an archive.

    Args:
      init: The pretrained run, as of `bertjax finetune`.
      data: Folder of SuperGLUE.
      workdir: Folder of the suite; runs in it are resumed.
      tasks: Names of tasks; all in the data if empty.
      seeds: Number of seeds of each run.
      recipe: Variant of the config file's recipe: `small` or `tiny`.
      parallel: Maximum number of runs at a time.
      config: Config file with a recipe for each task.
      overrides: Config overrides of all runs.

    Raises:
      UserError: an argument is invalid, or the folder belongs to another suite.
      Interrupted: Ctrl-C or SIGTERM stopped the runs, which have saved.
    """
    if _FIELD in dict(overrides):
        raise UserError(
            f"--config.{_FIELD}: got {dict(overrides)[_FIELD]}, expected none, since --tasks sets "
            f"it in every run; leave --config.{_FIELD} out"
        )
    folder = pathlib.Path(copies.local_copy(data))
    specs = {task.name: f"{config}:{task.name}" + (recipe and f",{recipe}") for task in TASKS}
    runs = []
    for task in find_tasks(folder, tasks):
        run_config = load_config(specs[task], overrides, FINE_TUNING)
        build.check(run_config)
        options = {"config": specs[task], "init": init, "data": data, "seeds": seeds}
        train = (folder / superglue_task(task).folder).glob("train.jsonl")
        work = relative_duration(train, run_config)
        runs.append(Run(task, "finetune", options, {}, overrides, work=work))
    record = {"init": init, "recipe": recipe}
    record["overrides"] = [f"{name}={value}" for name, value in overrides]
    record[RECIPES] = read_recipes(specs)
    return scheduler.run_suite(
        runs, workdir, {"superglue": record}, parallel=parallel, write=_write
    )


def find_tasks(data: pathlib.Path, names: Sequence[str] = ()) -> list[str]:
    """The tasks to run, in the order of the table.

    Args:
      data: Folder of SuperGLUE.
      names: Names of tasks; empty for all that are in the data.

    Raises:
      UserError: a task does not exist, or there is none in the data.
    """
    known = {superglue_task(name).name for name in names}
    found = [task.name for task in TASKS if task.name in known]
    present = [task.name for task in TASKS if (data / task.folder).is_dir()]
    if not names and not present:
        raise UserError(
            f"{data} has no folder of a SuperGLUE task: --data expects the folder that contains "
            "BoolQ/, CB/ and so on"
        )
    return found or present


def task_score(score: Score) -> float:
    """Score of a task on the leaderboard: mean over its metrics."""
    metrics = superglue_task(score.name).metrics
    return statistics.mean(score.medians[f"dev/{metric}"] for metric in metrics)


def average(scores: Sequence[Score]) -> float:
    """Score of the leaderboard: mean over tasks."""
    return statistics.mean(map(task_score, scores))


def rows(scores: Sequence[Score]) -> list[list[str]]:
    """A header, a row for each task and one for the average, in percent."""
    return [
        _HEADER,
        *map(_row, scores),
        [f"average of {len(scores)}", "", f"{100 * average(scores):.1f}", "", ""],
    ]


def _row(score: Score) -> list[str]:
    metrics = superglue_task(score.name).metrics
    medians = " / ".join(f"{100 * score.medians[f'dev/{metric}']:.1f}" for metric in metrics)
    return [score.name, ", ".join(metrics), medians, score.spread, str(score.seeds)]


def missing_files(scores: Sequence[Score]) -> list[str]:
    """Files that the evaluation server requires and no finished run has written."""
    return suite.missing_files(scores, [f"{task.folder}.jsonl" for task in TASKS])


def read_scores(workdir: pathlib.Path) -> list[Score]:
    """The scores of all tasks that are finished in a folder, also by earlier calls."""
    scores = (read_score(task.name, workdir / task.name) for task in TASKS)
    return [score for score in scores if score is not None]


def _write(folder: pathlib.Path) -> list[Score]:
    if scores := read_scores(folder):
        servers = (split.server for task in TASKS for split in task.splits if split.server)
        names = list(dict.fromkeys(f"{server}.jsonl" for server in servers))
        suite.write_submission(folder / "submission.zip", scores, names)
        missing = {"missing_of_server": missing_files(scores)}
        content = suite_content(scores, task_score) | missing
        scheduler.write_table(folder, rows(scores), content)
    return scores
