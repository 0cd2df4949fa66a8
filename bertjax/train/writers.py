"""Write metrics to the terminal, to `metrics.jsonl` (one JSON object per line), to TensorBoard."""

import datetime
import json
import math
import os
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

import jax

from bertjax.errors import UserError
from bertjax.io.files import is_disk_full, write_text
from bertjax.train import report
from bertjax.train.hooks import Hook, Run, Values
from bertjax.train.metric_records import parse_record

_SECONDS_PER_STEP = "seconds_per_step"


class Display(Hook):
    """Prints progress on standard error, on the first host only.

    With a budget of time, the number of steps of the run is estimated.
    """

    def __init__(self):
        self._live = None
        self._expected_steps: float = math.inf

    def on_train_begin(self, run: Run, state: Any, restored: Mapping[str, Any]) -> None:
        self._run = run
        self._shown = jax.process_index() == 0
        if self._shown and sys.stderr.isatty():
            self._live = _make_progress(run)
            self._live.start()

    def on_compile_begin(self) -> None:
        self._show("compiling", "the training step")

    def on_compile_end(self, seconds: float) -> None:
        self._show("compiled", f"in {seconds:,.1f} s")

    def on_metrics(self, step: int, values: Values) -> None:
        if self._live is not None:
            self._live.update(self._live.task_ids[0], completed=step)

    def _show(self, label: str, text: str) -> None:
        """Shows the state of the run before its first report."""
        if self._live is not None:
            self._live.update(self._live.task_ids[0], figures=f"{label} {text}", refresh=True)
        elif self._shown:
            print(f"{label:12}{text}", file=sys.stderr, flush=True)

    def on_record(self, step: int, values: Values) -> None:
        if not self._shown:
            return
        is_training = "loss" in values
        if _SECONDS_PER_STEP in values:
            self._expected_steps = step + self._run.seconds_left / values[_SECONDS_PER_STEP]
        total = max(step, math.ceil(min(self._run.num_train_steps, self._expected_steps)))
        text = _describe_training(values) if is_training else _describe_other(values)
        if is_training and self._live is not None:
            self._live.update(self._live.task_ids[0], figures=text, total=total)
            return
        remaining = _time_remaining(values, total - step) if is_training else ""
        line = f"step {step:>{len(str(total))}}/{total}  {text}{remaining}"
        if self._live is not None:
            self._live.console.print(line, markup=False, highlight=False)
        else:
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()


def _make_progress(run: Run):
    from rich import progress
    from rich.console import Console

    live = progress.Progress(
        progress.BarColumn(bar_width=20),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[figures]}", markup=False),
        progress.TextColumn("ETA"),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        refresh_per_second=4,
        speed_estimate_period=120,
    )
    live.add_task("", total=run.num_train_steps, completed=run.first_step, figures="")
    return live


def _describe_training(values: Values) -> str:
    parts = [f"loss {values['loss']:.4f}"]
    if "tokens_per_second" in values:
        parts.append(f"{values['tokens_per_second']:,.0f} tokens/s")
    if "model_flops_utilisation" in values:
        parts.append(f"MFU {values['model_flops_utilisation']:.1%}")
    if "input_stall" in values:
        parts.append(f"input stall {values['input_stall']:.1%}")
    if values.get("updates_skipped"):
        parts.append(f"{values['updates_skipped']:.0f} updates skipped")
    return "  ".join(parts)


def _describe_other(values: Values) -> str:
    if report.GOODPUT in values:
        return report.describe_goodput(values)
    return "  ".join(f"{name} {value:.4f}" for name, value in values.items())


def _time_remaining(values: Values, steps: int) -> str:
    if _SECONDS_PER_STEP not in values or steps <= 0:
        return ""
    seconds = round(values[_SECONDS_PER_STEP] * steps)
    return f"  ETA {datetime.timedelta(seconds=seconds)}"


class MetricsFile(Hook):
    """Appends every record to `metrics.jsonl`.

    A killed run may have written records of steps after its last checkpoint, or an incomplete line:
    both are removed when it resumes, so that every step has one record, and so are records of the
    checkpoint's step that it does not count: of an evaluation that is repeated. Values that are not
    finite are null.
    """

    def __init__(self, workdir: str | os.PathLike):
        self.path = pathlib.Path(workdir) / "metrics.jsonl"
        self._file = None
        self._num_lines = 0

    def on_train_begin(self, run: Run, state: Any, restored: Mapping[str, Any]) -> None:
        if jax.process_index() != 0:
            return
        if self.path.exists():
            lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines(True)
            retained = [line for line in lines if _is_up_to(line, run.first_step)]
            # Checkpoints of earlier versions have no number of lines.
            retained = retained[: restored.get("lines")]
            self._num_lines = len(retained)
            if retained != lines:
                write_text(self.path, "".join(retained))
        self._file = self.path.open("a", encoding="utf-8")

    def on_record(self, step: int, values: Values) -> None:
        if self._file is None:
            return
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        try:
            self._file.write(json.dumps({"step": step, **finite}, allow_nan=False) + "\n")
            self._file.flush()
            self._num_lines += 1
        except OSError as error:
            if not is_disk_full(error):
                raise
            raise UserError(
                f"{self.path}: the disk is full at step {step}; free some space and run the same "
                f"command again to resume from the last checkpoint"
            ) from error

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            try:
                file.close()
            except OSError as error:
                # The failed write has been reported already.
                if not is_disk_full(error):
                    raise

    def state_dict(self) -> dict[str, Any]:
        return {"lines": self._num_lines} if self._file is not None else {}


class TensorBoard(Hook):
    """Writes every record as TensorBoard scalars, in `tensorboard/`."""

    def __init__(self, workdir: str | os.PathLike):
        self._folder = pathlib.Path(workdir) / "tensorboard"
        self._writer = None

    def on_train_begin(self, run: Run, state: Any, restored: Mapping[str, Any]) -> None:
        if jax.process_index() != 0:
            return
        # TensorBoard discards records of later steps that an earlier start wrote.
        purge_step = run.first_step + 1 if run.first_step else None
        self._writer = _summary_writer()(str(self._folder), purge_step=purge_step)

    def on_record(self, step: int, values: Values) -> None:
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _summary_writer() -> type:
    """Imports the writer of tensorboardX without PyTorch.

    It imports PyTorch where that is installed, for pictures of graphs: seconds of every start and
    hundreds of megabytes, which scalars do not need.
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


def _is_up_to(line: str, step: int) -> bool:
    record = parse_record(line)
    return record is not None and record["step"] <= step
