"""What a run reports every so many steps: means of its metrics, speed, utilisation, stalls."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bertjax.train.hooks import Hook, Run, Values

_AS_THEY_ARE = {"learning_rate"}
"""Not averaged over the steps since the last report."""


class Work(NamedTuple):
    """What one step is worth: tokens that the batch has room for, and FLOPs of the model."""

    tokens: int
    flops: float


class Report(Hook):
    """Sums up the steps since the last report and records the means.

    A mean leaves out skipped steps, whose values are not finite. What is summed up so far goes into
    checkpoints: a resumed run reports what the uninterrupted one would have.

    Beside the metrics of `train_step` it records `updates_skipped`, `tokens` and `seconds` since
    the beginning of the run; and, since the last report, `seconds_per_step`, `tokens_per_second`,
    `model_flops_utilisation` and `input_stall`, the share of the time in which no step ran
    because its batch was not there. Compilation, evaluation and saving count in `seconds` alone.

    Args:
      every: steps from one report to the next; the last step of a run is always reported.
      work: step -> what it is worth; phases of a run may differ.
      peak_flops_per_second: of all devices; without it there is no utilisation.
    """

    def __init__(
        self,
        every: int,
        work: Callable[[int], Work],
        peak_flops_per_second: float | None = None,
    ):
        self._every, self._work, self._peak = max(every, 1), work, peak_flops_per_second
        self._clock: _Clock | None = None

    def begin(self, run: Run, state: Any, remembered: Mapping[str, Any]) -> None:
        self._run = run
        self._start = time.monotonic()
        self._seconds_before = remembered.get("seconds", 0.0)
        self.tokens = remembered.get("tokens", 0)
        self.updates_skipped = remembered.get("updates_skipped", 0)
        self._sums = dict(remembered.get("sums", {}))
        self._steps = remembered.get("steps", 0)

    @property
    def seconds(self) -> float:
        """Time in the loop since the beginning of the run, over all its starts."""
        return self._seconds_before + time.monotonic() - self._start

    def measured(self, step: int, values: Values) -> None:
        work = self._work(step)
        self.tokens += work.tokens
        if self._clock is None:
            # The first step of a process is compiled: it is no measure of speed.
            self._clock = _Clock(self._run)
        else:
            self._clock.add(work)
        self._add(values)
        if step % self._every == 0 or step == self._run.num_train_steps:
            self._run.record(step, self._means(values) | self._speed())
            self._sums, self._steps, self._clock = {}, 0, _Clock(self._run)

    def remember(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "tokens": self.tokens,
            "updates_skipped": self.updates_skipped,
            "sums": self._sums,
            "steps": self._steps,
        }

    def _add(self, values: Values) -> None:
        if values.get("skipped"):
            self.updates_skipped += 1
            return
        self._steps += 1
        for name, value in values.items():
            if name not in _AS_THEY_ARE:
                self._sums[name] = self._sums.get(name, 0.0) + value

    def _means(self, newest: Values) -> dict[str, float]:
        means = {
            name: newest[name]
            if name in _AS_THEY_ARE
            else self._sums.get(name, math.nan) / max(self._steps, 1)
            for name in newest
            if name != "skipped"
        }
        return means | {"updates_skipped": self.updates_skipped, "tokens": self.tokens}

    def _speed(self) -> dict[str, float]:
        return {"seconds": self.seconds} | self._clock.speed(self._peak)


class _Clock:
    """Measures the steps from its making on, without what the run does aside."""

    def __init__(self, run: Run):
        self._run = run
        self._start = self._now()
        self._stalled = run.stall_seconds
        self._steps = self._tokens = self._flops = 0

    def add(self, work: Work) -> None:
        self._steps += 1
        self._tokens += work.tokens
        self._flops += work.flops

    def speed(self, peak: float | None) -> dict[str, float]:
        seconds = self._now() - self._start
        if not self._steps or seconds <= 0:
            return {}
        speed = {
            "seconds_per_step": seconds / self._steps,
            "tokens_per_second": self._tokens / seconds,
            "input_stall": (self._run.stall_seconds - self._stalled) / seconds,
        }
        if peak:
            speed["model_flops_utilisation"] = self._flops / seconds / peak
        return speed

    def _now(self) -> float:
        return time.monotonic() - self._run.aside_seconds
