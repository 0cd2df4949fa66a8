"""Report training: metric means, throughput, model FLOPs utilisation, input stalls, goodput.

Model FLOPs are counted from the program: the multiplications and additions of matmuls and
convolutions, without rematerialisation (PaLM, Chowdhery et al. 2022, appendix B). Goodput is the
share of wall-clock time that is spent in training steps.
"""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend import core
from jax.interpreters import partial_eval

from bertjax.layers.layer_choice import FORWARD
from bertjax.train.hooks import Hook, Run, Values
from bertjax.train.metric_records import read_metrics

BACKWARD_PER_FORWARD = 2
"""Each product of the forward pass has two in the backward pass, one for either operand."""


def training_flops(forward: Callable, *arguments: Any) -> int:
    """FLOPs of one forward and backward pass; what is frozen has no backward pass.

    Args:
      forward: what computes the loss. It is traced, not run.
      *arguments: arrays or `jax.ShapeDtypeStruct`s.
    """
    return _count(_needed(forward, arguments), BACKWARD_PER_FORWARD)


def flops(function: Callable, *arguments: Any) -> int:
    """FLOPs of the products in one call of a function, which is traced, not run.

    Raises:
      ValueError: there are products in a loop whose length depends on values.
    """
    return _count(_needed(function, arguments), 0)


def _needed(function: Callable, arguments: Sequence[Any]) -> core.Jaxpr:
    """The program without what nothing of its result needs: a compiler drops that."""
    program = jax.make_jaxpr(function)(*arguments).jaxpr
    needed, _ = partial_eval.dce_jaxpr(program, [True] * len(program.outvars))
    return needed


def _count(program: core.Jaxpr, backward: int) -> int:
    return sum(
        (1 + backward) * _own(equation) + _inner(equation, backward) for equation in program.eqns
    )


def _own(equation: core.JaxprEqn) -> int:
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        left = equation.invars[0].aval.shape
        summed = math.prod(left[axis] for axis in contracted)
    elif equation.primitive.name == "conv_general_dilated":
        kernel = equation.invars[1].aval.shape
        output_axis = equation.params["dimension_numbers"].rhs_spec[0]
        summed = math.prod(kernel) // kernel[output_axis]
    else:
        return 0
    return 2 * summed * math.prod(equation.outvars[0].aval.shape)


def _inner(equation: core.JaxprEqn, backward: int) -> int:
    """What the programs inside an equation need: a scan's body, as often as it runs."""
    name, parameters = equation.primitive.name, equation.params
    if parameters.get("name") == FORWARD:
        backward = 0
    counts = [_count(program, backward) for program in _programs(equation)]
    if name == "scan":
        return parameters["length"] * sum(counts)
    if name == "pallas_call":
        return math.prod(parameters["grid_mapping"].grid) * sum(counts)
    if name == "shard_map":
        # Releases of JAX differ in the name.
        axes = parameters.get("newly_manual_axes") or parameters["manual_axes"]
        return math.prod(parameters["mesh"].shape[axis] for axis in axes) * sum(counts)
    if name == "cond":
        return max(counts)
    if name == "while" and sum(counts):
        raise ValueError("products inside a while loop: how often it runs is not known")
    return sum(counts)


def _programs(equation: core.JaxprEqn) -> Iterator[core.Jaxpr]:
    for value in equation.params.values():
        for item in value if isinstance(value, tuple | list) else [value]:
            if isinstance(item, core.ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, core.Jaxpr):
                yield item


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

    def on_train_begin(self, run: Run, state: Any, restored: Mapping[str, Any]) -> None:
        self._run, self._start = run, time.monotonic()
        self._before = dict(restored)
        if restored or run.first_step == 0:
            lost = self._told_seconds(run.first_step) - restored.get("seconds", 0.0)
            self._before["lost"] = restored.get("lost", 0.0) + max(lost, 0.0)

    def due(self, step: int, ending: str | None) -> bool:
        return ending is not None

    def on_step(self, step: int, state: Any) -> None:
        spent = self.state_dict()
        seconds, lost = spent.pop("seconds"), spent.pop("lost")
        steps = seconds - sum(spent.values())
        self.newest = {
            SHARE: steps / (seconds + lost),
            _STEPS: steps,
            **{f"{SHARE}/{cause}": value for cause, value in spent.items()},
            _LOST: lost,
        }
        self._run.record(step, self.newest)

    def state_dict(self) -> dict[str, float]:
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
    """As the user reads it: the share, and where the time went."""
    causes = {name.removeprefix(f"{SHARE}/"): value for name, value in values.items()}
    share = causes.pop(SHARE)
    longest = sorted(causes.items(), key=lambda cause: -cause[1])
    shown = ", ".join(f"{name} {seconds:,.1f} s" for name, seconds in longest if seconds >= 0.05)
    return f"goodput {share:.1%}: {shown}"


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

    def on_train_begin(self, run: Run, state: Any, restored: Mapping[str, Any]) -> None:
        self._run = run
        self._start = time.monotonic()
        self._seconds_before = restored.get("seconds", 0.0)
        self.tokens = restored.get("tokens", 0)
        self.updates_skipped = restored.get("updates_skipped", 0)
        self._sums = dict(restored.get("sums", {}))
        self._steps = restored.get("steps", 0)

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

    def state_dict(self) -> dict[str, Any]:
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
