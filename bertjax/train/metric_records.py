"""Read `metrics.jsonl`, without JAX: a run can be inspected while it trains."""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from bertjax.io.files import read_json


def read_metrics(workdir: str | os.PathLike) -> list[dict[str, Any]]:
    """The records of a run, oldest first; a line that is cut off is left out."""
    path = pathlib.Path(workdir) / "metrics.jsonl"
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(True)
    return [record for record in map(parsed, lines) if record]


def parsed(line: str) -> dict[str, Any] | None:
    """One line; None for half of one, or for something else."""
    if not line.endswith("\n"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


def read_seeds(folder: pathlib.Path) -> list[list[dict[str, Any]]]:
    """The records of each seed of a fine-tuning that has started."""
    return [read_metrics(seed) for seed in sorted(folder.glob("seed_*"))]


def total_steps(folder: pathlib.Path, seeds: int) -> int | None:
    """The number of steps of all seeds of a fine-tuning; None until it has written its config."""
    path = folder / "config.json"
    return read_json(path)["num_train_steps"] * seeds if path.exists() else None


def newest_step(parts: list[list[Mapping[str, Any]]]) -> int:
    """The number of finished steps of all seeds."""
    return sum(part[-1]["step"] for part in parts if part)
