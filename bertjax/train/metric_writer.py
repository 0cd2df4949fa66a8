"""Measurements on disk: `metrics.jsonl`, one JSON object a line, and TensorBoard events."""

import json
import math
import os
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

import jax

from bertjax.errors import UserError
from bertjax.train.files import is_disk_full, write_text
from bertjax.train.hooks import Hook, Run, Values
from bertjax.train.metric_records import parsed, read_metrics

__all__ = ["MetricsFile", "TensorBoard", "read_metrics"]


class MetricsFile(Hook):
    """Appends every record to `metrics.jsonl`.

    A run that was killed may have written about steps that its checkpoint knows nothing of, or half
    a line: both are removed when it goes on, so that every step is told once. What is not finite
    is null.
    """

    def __init__(self, workdir: str | os.PathLike):
        self.path = pathlib.Path(workdir) / "metrics.jsonl"
        self._file = None

    def begin(self, run: Run, state: Any, remembered: Mapping[str, Any]) -> None:
        if jax.process_index() != 0:
            return
        if self.path.exists():
            lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines(True)
            kept = [line for line in lines if _told_by(line, run.first_step)]
            if kept != lines:
                write_text(self.path, "".join(kept))
        self._file = self.path.open("a", encoding="utf-8")

    def recorded(self, step: int, values: Values) -> None:
        if self._file is None:
            return
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        try:
            self._file.write(json.dumps({"step": step, **finite}, allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            if not is_disk_full(error):
                raise
            raise UserError(
                f"{self.path}: the disk is full at step {step}; free some space and start the "
                f"same command to go on from the last checkpoint"
            ) from error

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            try:
                file.close()
            except OSError as error:
                # A line that did not fit was reported when it was written.
                if not is_disk_full(error):
                    raise


class TensorBoard(Hook):
    """Writes every record as TensorBoard scalars, in `tensorboard/`."""

    def __init__(self, workdir: str | os.PathLike):
        self._folder = pathlib.Path(workdir) / "tensorboard"
        self._writer = None

    def begin(self, run: Run, state: Any, remembered: Mapping[str, Any]) -> None:
        if jax.process_index() != 0:
            return
        # TensorBoard forgets what an earlier start wrote about later steps.
        purge_step = run.first_step + 1 if run.first_step else None
        self._writer = _summary_writer()(str(self._folder), purge_step=purge_step)

    def recorded(self, step: int, values: Values) -> None:
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _summary_writer() -> type:
    """TensorboardX's writer, without PyTorch.

    It imports PyTorch where that is installed, for pictures of graphs: seconds of every start, and
    hundreds of megabytes, for nothing that scalars need.
    """
    absent = "torch" not in sys.modules
    if absent:
        sys.modules["torch"] = None
    try:
        from tensorboardX import SummaryWriter
    finally:
        if absent:
            del sys.modules["torch"]
    return SummaryWriter


def _told_by(line: str, step: int) -> bool:
    record = parsed(line)
    return record is not None and record["step"] <= step
