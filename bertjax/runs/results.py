"""Results of fine-tuning: scores of epochs and seeds, statistics, prediction files."""

import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from bertjax.interfaces import Dataset
from bertjax.io.files import read_json, write_json
from bertjax.metrics import classification
from bertjax.train import epochs

SCORE = "dev/score"
"""Mean of a task's main metrics on the dev split; epochs and seeds are compared by it."""

Result = dict[str, Any]
"""Result of one seed: `{"seed", "epochs", "chosen_epoch", "scores"}`."""


def score_epoch(
    dataset: Dataset,
    config: ConfigDict,
    predictions: Callable[[str], np.ndarray],
    *,
    epoch: int,
    before: Sequence[epochs.Epoch],
    folder: pathlib.Path,
) -> dict[str, float]:
    """Scores the dev splits; an epoch that may be chosen also writes predictions of all splits.

    Args:
      dataset: The examples.
      config: Config of the run.
      predictions: Function from a split to its predictions.
      epoch: Number of the epoch, from 1.
      before: The epochs before it.
      folder: Folder of the seed; predictions go to its `predictions/`.
    """
    made = {split: predictions(split) for split in dataset.dev}
    values = _scores(dataset, made)
    values |= dataset.headline(values)
    is_last = epoch == config.num_train_epochs
    if not epochs.is_chosen_so_far(config.choose_epoch, SCORE, values, before, is_last=is_last):
        return values
    rest = {split: predictions(split) for split in dataset.test}
    values |= _scores(dataset, rest)
    if jax.process_index() == 0:
        for split, found in (made | rest).items():
            dataset.write(split, found, folder / "predictions")
    return values


def _scores(dataset: Dataset, made: Mapping[str, np.ndarray]) -> dict[str, float]:
    return {
        f"{split}/{metric}": value
        for split, found in made.items()
        for metric, value in dataset.score(split, found).items()
    }


def finish(folder: pathlib.Path, config: ConfigDict, evaluated: Sequence[epochs.Epoch]) -> Result:
    """Chooses an epoch, writes `result.json` and deletes checkpoints that are not to be kept."""
    chosen = epochs.choose(config.choose_epoch, SCORE, evaluated)
    scores = {name: value for name, value in chosen.items() if name not in ("epoch", "step")}
    result = {
        "seed": config.seed,
        "epochs": list(evaluated),
        "chosen_epoch": chosen["epoch"],
        "scores": scores,
    }
    if len(evaluated) < config.num_train_epochs:
        result["stopped_early_after_epoch"] = len(evaluated)
    if jax.process_index() == 0:
        write_json(folder / "result.json", result)
        if not config.keep_checkpoints:
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return result


def read(folder: pathlib.Path) -> Result | None:
    """The result of a seed, None if it is not finished."""
    path = folder / "result.json"
    return read_json(path) if path.exists() else None


def spreads(results: Sequence[Result]) -> dict[str, dict[str, float]]:
    """Median, mean, minimum, maximum and standard deviation over seeds of each metric."""
    names = results[0]["scores"]
    return {
        name: classification.summarize([result["scores"][name] for result in results])
        for name in names
    }


def median_seed(results: Sequence[Result]) -> int:
    """The seed with the median dev score, or with the lower of the middle two scores."""
    by_score = sorted(results, key=lambda result: (result["scores"][SCORE], result["seed"]))
    return by_score[(len(results) - 1) // 2]["seed"]


def write(
    workdir: pathlib.Path,
    config: ConfigDict,
    results: Sequence[Result],
    properties: Mapping[str, Any],
    *,
    complete: bool,
) -> None:
    """Writes the predictions of the median seed, `summary.json` and `results.json`, in this order.

    Suites skip runs whose `results.json` is complete, so at any time such a run has predictions.

    Args:
      workdir: Folder of the run.
      config: Config of the run.
      results: Results of the finished seeds.
      properties: Further properties of the run, such as its task.
      complete: Whether all requested seeds are finished.
    """
    if jax.process_index() != 0:
        return
    over_seeds = spreads(results)
    seed = median_seed(results)
    rule = epochs.RULES[config.choose_epoch].format(metric=SCORE)
    common = {
        "status": "complete" if complete else "running",
        "seeds": len(results),
        "steps": config.num_train_steps,
        "epoch_rule": {"name": config.choose_epoch, "meaning": rule},
        "predictions": {"seed": seed, "meaning": f"the seed whose {SCORE} is the median"},
        **properties,
    }
    details = {"over_seeds": over_seeds, "each_seed": list(results), "config": config.to_dict()}
    medians = {name: spread["median"] for name, spread in over_seeds.items()}
    copy = workdir / "predictions.part"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(workdir / f"seed_{seed}" / "predictions", copy)
    # Folders are not swapped atomically: in between the run must not count as finished.
    write_json(workdir / "results.json", common | details | {"status": "running"})
    shutil.rmtree(workdir / "predictions", ignore_errors=True)
    copy.rename(workdir / "predictions")
    write_json(workdir / "summary.json", common | {"median": medians})
    write_json(workdir / "results.json", common | details)
