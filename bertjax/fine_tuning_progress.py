"""How far a fine-tuning is, from its files alone: reading disturbs no run."""

import pathlib
from collections.abc import Mapping
from typing import Any

from bertjax.train.files import read_json
from bertjax.train.metric_records import read_metrics


def records(folder: pathlib.Path) -> list[list[dict[str, Any]]]:
    """The records of each seed that has begun."""
    return [read_metrics(seed) for seed in sorted(folder.glob("seed_*"))]


def total_steps(folder: pathlib.Path, seeds: int) -> int | None:
    """Steps of all seeds together; None before the run has written its config."""
    path = folder / "config.json"
    return read_json(path)["num_train_steps"] * seeds if path.exists() else None


def newest_step(parts: list[list[Mapping[str, Any]]]) -> int:
    """Steps done, of all seeds together."""
    return sum(part[-1]["step"] for part in parts if part)
