"""What lies in `metrics.jsonl`, read without jax: anybody may look at a run while it trains."""

import json
import os
import pathlib
from typing import Any


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
