"""What the time of a run went into: training, and everything else that it had to wait for."""

import os
import time
from collections.abc import Mapping
from typing import Any

from bertjax.train.hooks import Hook, Run, Values
from bertjax.train.metric_records import read_metrics

SHARE = "goodput"
_STEPS, _LOST = f"{SHARE}/steps", f"{SHARE}/lost"
_CAUSES = {"Evaluate": "evaluation", "SaveCheckpoints": "checkpoint"}


class Goodput(Hook):
    """Records, when a process ends, the share of its time that went into steps, and the rest.

    Beside `goodput`, the share, stand seconds since the beginning of the run, over all its starts:
    `goodput/steps`; `goodput/input`, in which no step ran for want of a batch; `goodput/compile`;
    `goodput/evaluation`; `goodput/checkpoint`, in which the loop waited for one; `goodput/lost`,
    for steps that had to be taken again, as far as an earlier process wrote about them. The last
    checkpoint of a process is not yet in it.

    Args:
      workdir: Of the run; put this hook before the one that writes `metrics.jsonl` there.

    Attributes:
      newest: What was recorded last; empty before.
    """

    def __init__(self, workdir: str | os.PathLike):
        self._workdir = workdir
        self.newest: Values = {}

    def begin(self, run: Run, state: Any, remembered: Mapping[str, Any]) -> None:
        self._run, self._start = run, time.monotonic()
        self._before = dict(remembered)
        if remembered or run.first_step == 0:
            lost = self._told_seconds(run.first_step) - remembered.get("seconds", 0.0)
            self._before["lost"] = remembered.get("lost", 0.0) + max(lost, 0.0)

    def due(self, step: int, ending: str | None) -> bool:
        return ending is not None

    def act(self, step: int, state: Any) -> None:
        spent = self.remember()
        seconds, lost = spent.pop("seconds"), spent.pop("lost")
        steps = seconds - sum(spent.values())
        self.newest = {
            SHARE: steps / (seconds + lost),
            _STEPS: steps,
            **{f"{SHARE}/{cause}": value for cause, value in spent.items()},
            _LOST: lost,
        }
        self._run.record(step, self.newest)

    def remember(self) -> dict[str, float]:
        """Seconds by cause, and all of them but those that were lost."""
        now = {"seconds": time.monotonic() - self._start, "lost": 0.0}
        now |= {"input": self._run.stall_seconds, "compile": self._run.compile_seconds}
        for hook, seconds in self._run.spent.items():
            cause = _CAUSES.get(hook, "hooks")
            now[cause] = now.get(cause, 0.0) + seconds
        return {
            cause: self._before.get(cause, 0.0) + now.get(cause, 0.0)
            for cause in {**self._before, **now}
        }

    def _told_seconds(self, step: int) -> float:
        """When the run told last of a step after this one, in seconds since its beginning."""
        records = read_metrics(self._workdir)
        return max((r.get("seconds") or 0.0 for r in records if r["step"] > step), default=0.0)


def text(values: Values) -> str:
    """As a person reads it: the share, and where the time went."""
    causes = {name.removeprefix(f"{SHARE}/"): value for name, value in values.items()}
    share = causes.pop(SHARE)
    longest = sorted(causes.items(), key=lambda cause: -cause[1])
    shown = ", ".join(f"{name} {seconds:,.1f} s" for name, seconds in longest if seconds >= 0.05)
    return f"goodput {share:.1%}: {shown}"
