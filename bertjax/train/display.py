"""What a person sees while it runs: a live line in a terminal, plain lines elsewhere."""

import datetime
import sys
from collections.abc import Mapping
from typing import Any

import jax

from bertjax.train import goodput
from bertjax.train.hooks import Hook, Run, Values

_SECONDS_PER_STEP = "seconds_per_step"


class Display(Hook):
    """Shows progress on standard error, on the first host alone."""

    def __init__(self):
        self._live = None

    def begin(self, run: Run, state: Any, remembered: Mapping[str, Any]) -> None:
        self._run = run
        self._shown = jax.process_index() == 0
        if self._shown and sys.stderr.isatty():
            self._live = _live_line(run)
            self._live.start()

    def measured(self, step: int, values: Values) -> None:
        if self._live is not None:
            self._live.update(self._live.task_ids[0], completed=step)

    def recorded(self, step: int, values: Values) -> None:
        if not self._shown:
            return
        is_training = "loss" in values
        text = _training(values) if is_training else _aside(values)
        if is_training and self._live is not None:
            self._live.update(self._live.task_ids[0], figures=text)
            return
        total = self._run.num_train_steps
        remaining = _remaining(values, total - step) if is_training else ""
        line = f"step {step:>{len(str(total))}}/{total}  {text}{remaining}"
        if self._live is not None:
            self._live.console.print(line, markup=False, highlight=False)
        else:
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()


def _live_line(run: Run):
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
    figures = "compiling"
    live.add_task("", total=run.num_train_steps, completed=run.first_step, figures=figures)
    return live


def _training(values: Values) -> str:
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


def _aside(values: Values) -> str:
    if goodput.SHARE in values:
        return goodput.text(values)
    return "  ".join(f"{name} {value:.4f}" for name, value in values.items())


def _remaining(values: Values, steps: int) -> str:
    if _SECONDS_PER_STEP not in values or steps <= 0:
        return ""
    seconds = round(values[_SECONDS_PER_STEP] * steps)
    return f"  ETA {datetime.timedelta(seconds=seconds)}"
