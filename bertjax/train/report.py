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
from bertjax.train.schedule import SCHEDULE_STEP

BACKWARD_PER_FORWARD = 2
"""Each matmul of the forward pass has two in the backward pass, one for either operand."""


def training_flops(forward: Callable, *arguments: Any) -> int:
    """FLOPs of one forward and backward pass; frozen modules have no backward pass.

    Args:
      forward: The computation of the loss. It is traced, not run.
      *arguments: Arrays or `jax.ShapeDtypeStruct`s.
    """
    return _count(_live_program(forward, arguments), BACKWARD_PER_FORWARD)


def flops(function: Callable, *arguments: Any, operand_bytes: int | None = None) -> int:
    """FLOPs of the matmuls in one call of a function, which is traced, not run.

    Args:
      function: A function of arrays.
      *arguments: Arrays or `jax.ShapeDtypeStruct`s.
      operand_bytes: Counts matmuls with operands of this size alone, such as 1 for int8.

    Raises:
      ValueError: there are matmuls in a loop whose length depends on values.
    """
    return _count(_live_program(function, arguments), 0, operand_bytes)


def _live_program(function: Callable, arguments: Sequence[Any]) -> core.Jaxpr:
    """The program without dead code, which the compiler drops as well."""
    program = jax.make_jaxpr(function)(*arguments).jaxpr
    needed, _ = partial_eval.dce_jaxpr(program, [True] * len(program.outvars))
    return needed


def _count(program: core.Jaxpr, backward: int, operand_bytes: int | None = None) -> int:
    return sum(
        (1 + backward) * _equation_flops(equation, operand_bytes)
        + _nested_flops(equation, backward, operand_bytes)
        for equation in program.eqns
    )


def _equation_flops(equation: core.JaxprEqn, operand_bytes: int | None) -> int:
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
    sizes = {operand.aval.dtype.itemsize for operand in equation.invars}
    if operand_bytes and sizes != {operand_bytes}:
        return 0
    return 2 * summed * math.prod(equation.outvars[0].aval.shape)


def _nested_flops(equation: core.JaxprEqn, backward: int, operand_bytes: int | None) -> int:
    """FLOPs of the programs inside an equation, such as the body of a scan times its length."""
    name, parameters = equation.primitive.name, equation.params
    if parameters.get("name") == FORWARD:
        backward = 0
    counts = [_count(program, backward, operand_bytes) for program in _programs(equation)]
    if name == "scan":
        return parameters["length"] * sum(counts)
    if name == "pallas_call":
        return math.prod(parameters["grid_mapping"].grid) * sum(counts)
    if name == "shard_map":
        # The name differs between releases of JAX.
        axes = parameters.get("newly_manual_axes") or parameters["manual_axes"]
        return math.prod(parameters["mesh"].shape[axis] for axis in axes) * sum(counts)
    if name == "cond":
        return max(counts)
    if name == "while" and sum(counts):
        raise ValueError("cannot count the FLOPs of a while loop with an unknown trip count")
    return sum(counts)


def _programs(equation: core.JaxprEqn) -> Iterator[core.Jaxpr]:
    for value in equation.params.values():
        for item in value if isinstance(value, tuple | list) else [value]:
            if isinstance(item, core.ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, core.Jaxpr):
                yield item


GOODPUT = "goodput"
_STEPS, _LOST = f"{GOODPUT}/steps", f"{GOODPUT}/lost"
_CAUSES = {"Evaluate": "evaluation", "SaveCheckpoints": "checkpoint"}


class Goodput(Hook):
    """Records, when a process ends, the share of wall-clock time in training steps.

    In addition to `goodput`, the share, it records seconds over all starts of the run:
    `goodput/steps`; `goodput/input`, waiting for batches while no step ran; `goodput/compile`;
    `goodput/evaluation`; `goodput/checkpoint`, in which the loop was blocked; `goodput/lost`, of
    steps that were repeated after a kill, as far as their metrics had been written. The last
    checkpoint of a process is not included.

    Args:
      workdir: Folder of the run. This hook must precede the one that writes its `metrics.jsonl`.

    Attributes:
      newest: The last values; empty before the first.
    """

    def __init__(self, workdir: str | os.PathLike):
        self._workdir = workdir
        self.newest: Values = {}

    def on_train_begin(self, run: Run, state: Any, restored: Mapping[str, Any]) -> None:
        self._run, self._start = run, time.monotonic()
        self._before = dict(restored)
        if restored or run.first_step == 0:
            lost = self._last_seconds(run.first_step) - restored.get("seconds", 0.0)
            self._before["lost"] = restored.get("lost", 0.0) + max(lost, 0.0)

    def due(self, step: int, ending: str | None) -> bool:
        return ending is not None

    def on_step(self, step: int, state: Any) -> None:
        spent = self.state_dict()
        seconds, lost = spent.pop("seconds"), spent.pop("lost")
        steps = seconds - sum(spent.values())
        self.newest = {
            GOODPUT: steps / (seconds + lost),
            _STEPS: steps,
            **{f"{GOODPUT}/{cause}": value for cause, value in spent.items()},
            _LOST: lost,
        }
        self._run.record(step, self.newest)

    def state_dict(self) -> dict[str, float]:
        """Returns seconds by cause, and the total without lost seconds."""
        now = {"seconds": time.monotonic() - self._start, "lost": 0.0}
        now |= {"input": self._run.stall_seconds, "compile": self._run.compile_seconds}
        for hook, seconds in self._run.seconds_by_hook.items():
            cause = _CAUSES.get(hook, "hooks")
            now[cause] = now.get(cause, 0.0) + seconds
        return {
            cause: self._before.get(cause, 0.0) + now.get(cause, 0.0)
            for cause in {**self._before, **now}
        }

    def _last_seconds(self, step: int) -> float:
        """Seconds of the last record of a step after this one."""
        records = read_metrics(self._workdir)
        return max((r.get("seconds") or 0.0 for r in records if r["step"] > step), default=0.0)


def describe_goodput(values: Values) -> str:
    """Formats goodput as one line: the share, and the time of each cause."""
    causes = {name.removeprefix(f"{GOODPUT}/"): value for name, value in values.items()}
    share = causes.pop(GOODPUT)
    longest = sorted(causes.items(), key=lambda cause: -cause[1])
    shown = ", ".join(f"{name} {seconds:,.1f} s" for name, seconds in longest if seconds >= 0.05)
    return f"goodput {share:.1%}: {shown}"


_NOT_AVERAGED = {"learning_rate", SCHEDULE_STEP}
"""Metrics that are not averaged over the steps since the last report."""


class Work(NamedTuple):
    """Tokens of a batch, padding included, and FLOPs of the model for one step."""

    tokens: int
    flops: float


class Report(Hook):
    """Records means of the metrics since the last report, and the speed of training.

    Means exclude skipped steps, whose values are not finite. Sums are part of checkpoints: a
    resumed run reports the same values as the uninterrupted one.

    In addition to the metrics of `train_step` it records `updates_skipped`, `tokens` and `seconds`
    since the start of the run; and, since the last report, `seconds_per_step`,
    `tokens_per_second`, `model_flops_utilisation` and `input_stall`, the share of time in which no
    step ran because its batch was not ready. Compilation, evaluation and saving count in `seconds`
    alone.

    Args:
      every: Steps between reports; the last step of a run is always reported.
      work: step -> tokens and FLOPs, which may differ between phases.
      peak_flops_per_second: Peak FLOP/s of all devices; None records no utilisation.
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
        """Time in the loop over all starts of the run."""
        return self._seconds_before + time.monotonic() - self._start

    def on_metrics(self, step: int, values: Values) -> None:
        work = self._work(step)
        self.tokens += work.tokens
        if self._clock is None:
            # The first step of a process includes its compilation.
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
            if name not in _NOT_AVERAGED:
                self._sums[name] = self._sums.get(name, 0.0) + value

    def _means(self, newest: Values) -> dict[str, float]:
        means = {
            name: newest[name]
            if name in _NOT_AVERAGED
            else self._sums.get(name, math.nan) / max(self._steps, 1)
            for name in newest
            if name != "skipped"
        }
        return means | {"updates_skipped": self.updates_skipped, "tokens": self.tokens}

    def _speed(self) -> dict[str, float]:
        return {"seconds": self.seconds} | self._clock.speed(self._peak)


class _Clock:
    """Measures the speed of steps since its construction, without the time of hooks."""

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
        return time.monotonic() - self._run.hook_seconds
