"""The GLUE suite: the fine-tuning runs of one encoder on all tasks, and their scores.

plan      tasks, grid -> Runs
collect   finished Runs -> Scores of every task, the best point of the grid
submission  the evaluation server's files in one archive
"""

import dataclasses
import itertools
import pathlib
import statistics
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bertjax.errors import UserError
from bertjax.sweeps.processes import finished
from bertjax.tasks.glue.table import GLUE, glue_task

_EPOCHS = "num_train_epochs"

GRID = {
    "data.batch_size": (16, 32),
    "optimizer.learning_rate": (5e-5, 3e-5, 2e-5),
    _EPOCHS: (2, 3, 4),
}
"""Devlin et al. 2019, appendix A.3, without its rate of 4e-5."""

FROM_MNLI = ("rte", "stsb", "mrpc")
"""Begin with what MNLI taught the encoder, if asked to (Liu et al. 2019, section 5.1)."""

_SHORT = {
    "data.batch_size": "batch",
    "optimizer.learning_rate": "rate",
    _EPOCHS: "epochs",
}

Point = tuple[tuple[str, Any], ...]
"""Fields of the recipe and their values."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One task at one point of the grid.

    Attributes:
      task: Its name.
      point: What differs from the recipe.
      workdir: Its own.
    """

    task: str
    point: Point
    workdir: pathlib.Path

    def results(self) -> dict[str, Any] | None:
        """What came out, once all seeds are done."""
        return finished(self.workdir)


@dataclasses.dataclass(frozen=True)
class Score:
    """What a task came to, at the best point of its grid by the median over the seeds.

    Attributes:
      run: The run that is the best.
      medians: Of every metric on the dev splits, over the seeds.
      lowest: The lowest dev score of a seed.
      highest: The highest.
      seeds: How many there were.
      points: Among how many points of a grid the run was chosen, on the scores it reports.
    """

    run: Run
    medians: Mapping[str, float]
    lowest: float
    highest: float
    seeds: int
    points: int

    @property
    def score(self) -> float:
        """As the leaderboard takes a task: the mean of its metrics, MNLI's of both its dev sets."""
        task = glue_task(self.run.task)
        splits = [split.name for split in task.splits if split.server and split.labelled]
        named = [f"{split}/{metric}" for split in splits for metric in task.metrics]
        return statistics.mean(self.medians[name] for name in named)


def tasks_of(data: str, asked: str) -> list[str]:
    """The tasks to run, MNLI before those that may begin with it.

    Args:
      data: See `tasks/glue/files.py`.
      asked: Names with commas between them; empty for all that are in the folder.

    Raises:
      UserError: there is no such task, or none in the folder.
    """
    order = sorted((task.name for task in GLUE), key=lambda name: name in FROM_MNLI)
    if asked:
        named = [glue_task(name).name for name in asked.split(",")]
        return [name for name in order if name in named]
    if data.startswith("tfds:"):
        return order
    there = [name for name in order if (pathlib.Path(data) / glue_task(name).folder).is_dir()]
    if not there:
        raise UserError(
            f"{data} holds no GLUE task: --data requires the folder that holds CoLA/ etc."
        )
    return there


def plan(tasks: Iterable[str], workdir: pathlib.Path, *, grid: bool) -> list[Run]:
    """Every run of a suite, in the order in which they are started."""
    points: list[Point] = [()]
    if grid:
        axes = [[(name, value) for value in values] for name, values in GRID.items()]
        points = list(itertools.product(*axes))
    return [Run(task, point, workdir / task / folder(point)) for task in tasks for point in points]


def work(data: str, run: Run) -> float:
    """How much a run has to learn, compared with others: bytes of training examples, and epochs.

    Of data that is not a folder of this machine all tasks count the same.
    """
    folder = pathlib.Path(data) / glue_task(run.task).folder
    files = folder.glob("*train*") if folder.is_dir() else ()
    return max(1, sum(file.stat().st_size for file in files)) * dict(run.point).get(_EPOCHS, 1)


def folder(point: Point) -> str:
    return ",".join(f"{_SHORT[name]}_{value:g}" for name, value in point)


def collect(runs: Sequence[Run]) -> list[Score]:
    """The best finished run of every task that has one."""
    found = []
    for task in dict.fromkeys(run.task for run in runs):
        scored = [_score(run) for run in runs if run.task == task and run.results()]
        if scored:
            best = max(scored, key=lambda score: score.medians["dev/score"])
            found.append(dataclasses.replace(best, points=len(scored)))
    return found


def _score(run: Run) -> Score:
    results = run.results()
    over_seeds = results["over_seeds"]
    medians = {name: spread["median"] for name, spread in over_seeds.items()}
    score = over_seeds["dev/score"]
    return Score(run, medians, score["min"], score["max"], results["seeds"], 1)


def best_seed(run: Run) -> pathlib.Path:
    """The folder of the seed whose dev score is the median."""
    return run.workdir / f"seed_{run.results()['predictions']['seed']}"


def average(scores: Sequence[Score]) -> float:
    """The leaderboard's: the mean over tasks, each of which counts once."""
    return statistics.mean(score.score for score in scores)


def submission(path: pathlib.Path, scores: Sequence[Score]) -> list[str]:
    """Writes the server's files of all tasks into one archive, and tells which are missing."""
    wanted = [
        f"{split.server}.tsv"
        for task in GLUE
        for split in task.splits
        if split.server and not split.labelled
    ]
    files = {
        found.name: found
        for score in scores
        for found in (score.run.workdir / "predictions" / "test").glob("*.tsv")
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in wanted:
            if name in files:
                archive.write(files[name], name)
    return [name for name in wanted if name not in files]
