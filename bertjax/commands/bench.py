"""Benchmark the training steps of a config: speed, MFU and memory.

Needs no corpus: batches are random tokens of the config's shapes.
"""

import argparse
import json
import math
import pathlib
import resource
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from bertjax.commands import _flags
from bertjax.constraints import PositiveInt, constraint_action

GROUP = "Scale"

_TIMING_SECONDS = 1.0

EPILOG = """\
examples:
  bertjax bench --config configs/bert_mini.py
  bertjax bench --config configs/bert_base.py --config.data.phases='()' \\
      --config.data.max_seq_length=512 --config.data.batch_size=64 --steps 20
  bertjax bench --config bert:mini --config.data.phases='()' --profile trace

Prints a line per phase of the config (each has one batch shape): medians over
--repeats timings of --steps steps each, after --warmup steps; with --json also
FLOPs and the sizes of the compiled program. MFU (model_flops_utilisation) is
null if the peak FLOP/s of the device are unknown. --profile writes a trace for
TensorBoard and Perfetto, and prints how the time of a step is shared among
attention, other matmuls, dropout, the optimizer and waiting. Any field is set
with --config.SECTION.FIELD=VALUE.
"""


def main(argv: list[str]) -> None:
    """Measures the training steps of a config and prints the results as text or as JSON."""
    from bertjax.config import PRETRAINING, load_config, split_overrides

    rest, overrides = split_overrides(argv)
    arguments = parser().parse_args(rest)
    config = load_config(arguments.config, overrides, PRETRAINING)
    from bertjax.layers.attention_kernels import log_kernel_choice

    with log_kernel_choice(lambda line: print(line, file=sys.stderr, flush=True)):
        measured = measure(config, arguments)
    print(json.dumps(measured, indent=2) if arguments.json else "\n".join(_lines(measured)))


def _lines(measured: Mapping[str, Any]) -> Iterator[str]:
    """Yields the measurements as text: the devices, then a line for each phase."""
    yield (
        f"{measured['config']} on {measured['devices']} {measured['device']} device(s), "
        f"{measured['precision']}"
    )
    for phase in measured["phases"]:
        shape = f"  {phase['batch_size']} x {phase['max_seq_length']} tokens:"
        if "out_of_memory" in phase:
            yield f"{shape} out of memory"
            continue
        utilisation = phase["model_flops_utilisation"]
        known = f"  MFU {utilisation:.1%}" if utilisation is not None else ""
        yield (
            f"{shape} {phase['seconds_per_step']:.4f} s a step  "
            f"{phase['tokens_per_second']:,.0f} tokens/s{known}  "
            f"compiled in {phase['compile_seconds']:.1f} s  "
            f"peak memory of the {phase['peak_memory_of']} "
            f"{phase['peak_memory_bytes'] / 1e9:.2f} GB"
        )
        if "profile" in phase:
            parts = sorted(phase["profile"].items(), key=lambda item: -item[1])
            yield "    of its time: " + ", ".join(f"{kind} {part:.1%}" for kind, part in parts)


def parser() -> _flags.Parser:
    """Returns the parser of the command line."""
    parser = _flags.Parser("bertjax bench", __doc__, EPILOG)
    _flags.add_config(parser, "bert:base")
    parser.add_argument(
        "--steps",
        action=constraint_action(PositiveInt),
        metavar="N",
        help="steps per timing (default: about one second)",
    )
    parser.add_argument(
        "--repeats",
        action=constraint_action(PositiveInt),
        default=5,
        metavar="N",
        help="number of timings",
    )
    parser.add_argument(
        "--warmup",
        action=constraint_action(PositiveInt),
        default=2,
        metavar="N",
        help="steps before the first timing",
    )
    parser.add_argument(
        "--profile",
        default="",
        metavar="DIR",
        help="trace one additional timing; print the share of time of each kind of operation",
    )
    _flags.add_json(parser, "print one JSON object instead of text")
    return parser


def measure(config, arguments: "argparse.Namespace") -> dict:
    """Measures the training steps of every phase of a config.

    Args:
      config: A pretraining config.
      arguments: The options `config`, `steps`, `repeats`, `warmup` and `profile`.

    Returns:
      Device and precision, and under "phases" one entry per phase: times in seconds, memory in
      bytes, or `out_of_memory`.

    Raises:
      UserError: the config is invalid, or the folder of traces cannot be written.
    """
    import jax

    from bertjax import build
    from bertjax.io import storage
    from bertjax.layers.dense import PRECISIONS
    from bertjax.runtime.chips import peak_flops_per_second
    from bertjax.validation.config import require_steps

    build.check(config)
    require_steps(config)
    phases = build.phases(config)
    if arguments.profile:
        for phase in phases:
            storage.make_folder(_profile_folder(phase, arguments))
    mesh = build.make_mesh(config, phases)
    precision = build.precision(config.model)
    peak = peak_flops_per_second(jax.devices(), PRECISIONS[precision].operands)
    return {
        "config": arguments.config,
        "device": jax.devices()[0].device_kind,
        "devices": jax.device_count(),
        "jax": jax.__version__,
        "precision": precision,
        "peak_flops_per_second": peak,
        "phases": [_try_phase(config, phase, mesh, peak, arguments) for phase in phases],
    }


def _try_phase(config, phase, mesh, peak, arguments: "argparse.Namespace") -> dict:
    """Measures a phase; returns `out_of_memory` with advice if it does not fit."""
    import jax

    try:
        return _measure_phase(config, phase, mesh, peak, arguments)
    except jax.errors.JaxRuntimeError as error:
        if "out of memory" not in str(error).lower():
            raise
        failure = f"{str(error).splitlines()[0]}; raise --config.data.microbatches or set remat"
        print(f"{_text(phase)}: {failure}", file=sys.stderr, flush=True)
        shape = {"max_seq_length": phase.max_seq_length, "batch_size": phase.batch_size}
        return shape | {"out_of_memory": failure}


def _measure_phase(config, phase, mesh, peak, arguments: "argparse.Namespace") -> dict:
    import jax

    from bertjax.interfaces import extent
    from bertjax.profiling import dummy
    from bertjax.train.checkpoint import trees
    from bertjax.train.sharding import to_global

    trainer, rows = dummy.build_trainer(config, phase, mesh)
    state, batch = trainer.create_state(), to_global(rows, mesh)
    start = time.perf_counter()
    step = trainer.train_step.compile(state, batch)
    compile_seconds = time.perf_counter() - start

    def seconds_per_step(count: int) -> float:
        nonlocal state
        start = time.perf_counter()
        for _ in range(count):
            state, metrics = step(state, batch)
        jax.block_until_ready(metrics)
        return (time.perf_counter() - start) / count

    about = seconds_per_step(arguments.warmup)
    steps = arguments.steps or max(1, round(_TIMING_SECONDS / about))
    times = []
    for _ in range(arguments.repeats):
        times.append(seconds_per_step(steps))
        print(f"{_text(phase)}: {times[-1]:.4f} s a step", file=sys.stderr, flush=True)
    profile = {}
    if arguments.profile:
        from bertjax.profiling import trace

        folder = _profile_folder(phase, arguments)
        text = step.function.as_text()
        profile = {"profile": trace.measure(lambda: seconds_per_step(steps), folder, text)}
    shape = extent(rows)
    counted = trainer.flops(rows, shape)
    seconds = statistics.median(times)
    return {
        "max_seq_length": phase.max_seq_length,
        "batch_size": phase.batch_size,
        "steps_per_timing": steps,
        "parameters": trees.num_parameters(trainer.shapes.params),
        "seconds_per_step": seconds,
        "seconds_per_step_min_max": [min(times), max(times)],
        "tokens_per_second": math.prod(shape) / seconds,
        "sequences_per_second": phase.batch_size / seconds,
        "model_flops_per_step": counted,
        "model_flops_utilisation": counted / seconds / peak if peak else None,
        "compile_seconds": compile_seconds,
        **profile,
        **_memory(step.function),
    }


def _profile_folder(phase, arguments: "argparse.Namespace") -> pathlib.Path:
    return pathlib.Path(arguments.profile) / f"{phase.batch_size}x{phase.max_seq_length}"


def _text(phase) -> str:
    return f"{phase.batch_size} x {phase.max_seq_length} tokens"


def _memory(compiled) -> dict:
    """Returns the peak of the device if it reports one, else of the process, and compiler sizes."""
    import jax

    stats = jax.local_devices()[0].memory_stats() or {}
    analysis = compiled.memory_analysis()
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "peak_memory_bytes": stats.get("peak_bytes_in_use", resident),
        "peak_memory_of": "device" if "peak_bytes_in_use" in stats else "process",
        "argument_bytes": getattr(analysis, "argument_size_in_bytes", None),
        "temporary_bytes": getattr(analysis, "temp_size_in_bytes", None),
    }
