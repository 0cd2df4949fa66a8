"""Scores of finished fine-tuning runs, read from their `results.json`."""

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bertjax.io.files import read_json
from bertjax.sweeps.run import SCORE, Run


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
