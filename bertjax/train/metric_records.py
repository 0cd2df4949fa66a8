"""Read `metrics.jsonl` of a run, also while it is training, without importing JAX."""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from bertjax.io.files import read_json


def read_metrics(workdir: str | os.PathLike) -> list[dict[str, Any]]:
    """Reads the records of a run, oldest first; an incomplete line is skipped."""
    path = pathlib.Path(workdir) / "metrics.jsonl"
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(True)
    return [record for record in map(parse_record, lines) if record]


def parse_record(line: str) -> dict[str, Any] | None:
    """Parses one line; None if it is incomplete or no record."""
    if not line.endswith("\n"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


def read_seeds(folder: pathlib.Path) -> list[list[dict[str, Any]]]:
    """Reads the records of all seeds of a fine-tuning that have started."""
    return [read_metrics(seed) for seed in sorted(folder.glob("seed_*"))]


def total_steps(folder: pathlib.Path, seeds: int) -> int | None:
    """The number of steps of all seeds of a fine-tuning; None until it has written its config."""
    path = folder / "config.json"
    return read_json(path)["num_train_steps"] * seeds if path.exists() else None


def newest_step(parts: list[list[Mapping[str, Any]]]) -> int:
    """The number of finished steps of all seeds."""
    return sum(part[-1]["step"] for part in parts if part)
