"""A run of a sweep or of a suite, one `bertjax` command with its own folder, and its scores."""

import dataclasses
import pathlib
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from bertjax.io.files import read_json
from bertjax.overrides import Override
from bertjax.sweeps import grid

INIT = "init"
"""Option of fine-tuning: the pretrained run. A run of a sweep may set it next to its fields."""

SCORE = "dev/score"
"""Metric by which fine-tuning runs are compared."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A `bertjax pretrain` or `bertjax finetune` command.

    Attributes:
      name: Name of its folder, relative to the workdir of the sweep.
      verb: `pretrain` or `finetune`.
      options: Flags of the command, without --workdir: `config`, `init`, `data`, `seeds`.
      settings: Config fields in which it differs from the other runs, and their values.
      overrides: Config overrides that all runs share.
      steps: Total training steps of a pretraining; None where they follow from the data, as with
        epochs and in fine-tuning.
      metric: Metric by which runs are compared.
      mode: `min` or `max`: which values of the metric are better.
      work: Expected duration, relative to the other runs.
      log: File in its folder to which the output of the process is written.
      init_from: Names of runs that end before this one starts; it is initialised from the best of
        them, the seed whose score is the median.
    """

    name: str
    verb: str
    options: Mapping[str, Any]
    settings: Mapping[str, Any]
    overrides: Sequence[Override] = ()
    steps: int | None = None
    metric: str = SCORE
    mode: str = "max"
    work: float = 1.0
    log: str = "finetune.log"
    init_from: tuple[str, ...] = ()

    @property
    def seeds(self) -> int:
        """Number of seeds of a fine-tuning."""
        return self.options.get("seeds", 1)

    def words(self, workdir: str) -> list[str]:
        """The words of its command after `bertjax`, with this --workdir."""
        settings = ((field, text(value)) for field, value in self.settings.items() if field != INIT)
        return [
            self.verb,
            *(word for name, value in self.options.items() for word in (f"--{name}", str(value))),
            *("--workdir", workdir),
            *(f"--config.{field}={value}" for field, value in [*self.overrides, *settings]),
        ]


def text(value: Any) -> str:
    """A value as it is written on the command line."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return grid.value_text(value) if isinstance(value, float) else str(value)


def relative_duration(files: Iterable[pathlib.Path], config: ConfigDict) -> float:
    """The expected duration of a fine-tuning: bytes of its training examples times its epochs.

    Args:
      files: Its training examples, one per line; without any, data of one byte is assumed.
      config: Its config, which may limit the number of examples.
    """
    files = list(files)
    size = sum(file.stat().st_size for file in files)
    if config.max_train_examples:
        num_examples = sum(file.read_bytes().count(b"\n") for file in files)
        size *= min(1, config.max_train_examples / max(1, num_examples))
    return max(1, size) * config.num_train_epochs


@dataclasses.dataclass(frozen=True)
class Score:
    """Scores of a finished fine-tuning run over its seeds.

    Attributes:
      name: Row of the table: the name of the run, or of a GLUE task.
      workdir: The folder of the run.
      medians: Median over the seeds of every metric, as fractions.
      lowest: Lowest value of the main metric over the seeds.
      highest: Highest value of the main metric over the seeds.
      seeds: Number of seeds.
      settings: Config fields that were chosen for this run.
      points: Number of grid points from which the run was selected, by the scores it reports.
    """

    name: str
    workdir: pathlib.Path
    medians: Mapping[str, float]
    lowest: float
    highest: float
    seeds: int
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    points: int = 1

    @property
    def spread(self) -> str:
        """Lowest and highest score, in percent."""
        return f"{100 * self.lowest:.1f} to {100 * self.highest:.1f}"


def read_results(folder: pathlib.Path) -> dict[str, Any] | None:
    """The results of a fine-tuning; None unless all of its seeds are complete."""
    path = folder / "results.json"
    results = read_json(path) if path.exists() else None
    return results if results and results["status"] == "complete" else None


def read_score(name: str, folder: pathlib.Path, metric: str = SCORE) -> Score | None:
    """The scores of a fine-tuning; None unless all of its seeds are complete.

    Args:
      name: See `Score`.
      folder: The folder of the run.
      metric: The main metric.
    """
    results = read_results(folder)
    if results is None:
        return None
    over_seeds = results["over_seeds"]
    medians = {name: values["median"] for name, values in over_seeds.items()}
    main = over_seeds[metric]
    return Score(name, folder, medians, main["min"], main["max"], results["seeds"])


def suite_content(scores: Sequence[Score], task_score: Callable[[Score], float]) -> dict[str, Any]:
    """The table of a suite of tasks, GLUE or SuperGLUE, for `results.json`, as fractions.

    Args:
      scores: The finished tasks.
      task_score: The score of a task on the leaderboard.
    """
    return {
        "average": statistics.mean(map(task_score, scores)),
        "tasks": {
            score.name: {
                "score": task_score(score),
                "medians": dict(score.medians),
                "dev/score": {"min": score.lowest, "max": score.highest},
                "seeds": score.seeds,
                "points": score.points,
                "chosen": dict(score.settings),
                "workdir": str(score.workdir),
            }
            for score in scores
        },
    }


def scores_of_suite(content: Mapping[str, Any]) -> list[Score]:
    """The scores of a table that `suite_content` has converted."""
    return [
        Score(
            name=name,
            workdir=pathlib.Path(task["workdir"]),
            medians=task["medians"],
            lowest=task["dev/score"]["min"],
            highest=task["dev/score"]["max"],
            seeds=task["seeds"],
            settings=task["chosen"],
            points=task["points"],
        )
        for name, task in content["tasks"].items()
    ]


def read_best(name: str, runs: Iterable[Run], workdir: pathlib.Path) -> Score | None:
    """The scores of the finished run with the best median dev score; None if none is finished."""
    scores = [
        dataclasses.replace(score, settings=dict(run.settings))
        for run in runs
        if (score := read_score(name, workdir / run.name)) is not None
    ]
    best = max(scores, key=lambda score: score.medians[SCORE], default=None)
    return best and dataclasses.replace(best, points=len(scores))


def median_seed(folder: pathlib.Path) -> pathlib.Path:
    """The folder of the seed whose dev score is the median."""
    return folder / f"seed_{read_results(folder)['predictions']['seed']}"


def medians(scores: Sequence[Score], metric: str) -> dict[str, float]:
    """The median of one metric, by row."""
    return {score.name: score.medians[metric] for score in scores}
