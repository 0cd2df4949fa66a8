"""Compile training steps for TPUs ahead of time: memory, step time."""

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from bertjax.commands import _flags
from bertjax.constraints import PositiveInt, constraint_action
from bertjax.validation.unused_options import UnusedOptions, check_flags

GROUP = "Scale"

EPILOG = """\
examples:
  bertjax plan --config configs/bert_large.py --topology v5e:16x16
  bertjax plan --config configs/bert_large.py --topology v5p-512 \\
      --mesh data=64,fsdp=4
  bertjax plan --config configs/bert_large.py --topology v5e-256 --slices 4
  bertjax plan --config configs/albert.py:xxlarge --topology v6e-256 --search
  bertjax plan --config configs/roberta.py:large --topology v5e-256 --json

Needs no TPU and runs no step: the TPU compiler (pip install 'bertjax[tpu]')
compiles the training step of `bertjax pretrain`. Chips are v4, v5e, v5p, v6e
and tpu7x; a topology is a shape (v5e:4x8) or a Google Cloud name (v5e-32; for
v4 and v5p the number counts cores, two per chip).

Times are a roofline, a lower bound: the maximum of matmuls at peak FLOP/s and
memory traffic at peak bandwidth, plus the collectives over the two links of one
torus dimension; with --slices also over each chip's share of the network
between slices.

A step that does not fit is compiled again with more microbatches, other remat
policies, or parameters sharded over the devices. --search compiles all
plausible meshes and remat policies for the longest phase, and the best ones
with more microbatches while that saves at least 3%; this takes minutes. It
prints one line per setting, best first, and the best in full; Ctrl-C prints the
results so far. Both print the options of `bertjax pretrain` for the setting.
"""

_UNUSED_OPTIONS = (
    UnusedOptions(
        (
            *("mesh", "config.mesh.data", "config.mesh.fsdp", "config.mesh.tensor"),
            "config.model.remat",
        ),
        "search",
        bool,
        "neither a mesh nor a remat policy, since all of them are tried",
        "leave one of them out",
    ),
    UnusedOptions(
        tuple(f"config.mesh.{axis}" for axis in ("data", "fsdp", "tensor", "sequence")),
        "mesh",
        bool,
        "no other mesh, since an axis that it does not name is 1",
        "leave one of them out",
    ),
)


def main(argv: list[str]) -> None:
    """Compiles the step of every phase and prints the plan as tables or as JSON."""
    from bertjax.config import PRETRAINING, load_config, split_overrides

    rest, overrides = split_overrides(argv)
    options = parser()
    arguments = options.parse_args(rest)
    check_flags(_UNUSED_OPTIONS, vars(arguments), options.get_default, overrides)
    os.environ["JAX_PLATFORMS"] = "cpu"  # do not occupy an accelerator of this machine
    from bertjax import build
    from bertjax.profiling import plan as profiling_plan
    from bertjax.runtime import chips

    requested = load_config(arguments.config, overrides, PRETRAINING)
    config = profiling_plan.resolve_for_tpu(requested)
    if arguments.mesh:
        config = profiling_plan.with_mesh(config, arguments.mesh)
    build.check(config)
    topology = chips.get_topology(arguments.topology, arguments.slices)
    steps, fit = _compile(config, topology, arguments.search)
    if arguments.json:
        print(json.dumps(_content(arguments, topology, steps, fit), indent=2))
        return
    if arguments.search:
        _print_ranking(steps, topology)
        _print_step(steps[0], topology)
        _print_overrides(requested, steps[:1])
        return
    for step in steps:
        _print_step(step, topology)
    if not fit:
        _log("no setting fits: use more chips, or a smaller batch")
        return
    if fit != steps:
        print("settings that fit:\n")
        for step in fit:
            if step not in steps:
                _print_step(step, topology)
    _print_overrides(requested, fit)
    _print_run(fit, topology)


def _compile(config: Any, topology: Any, search: bool) -> tuple[list[Any], list[Any]]:
    """Compiles the steps: (as configured, in settings that fit), or (search results, [])."""
    from bertjax import build
    from bertjax.profiling import search as profiling_search
    from bertjax.profiling.worker import CompilerProcess
    from bertjax.validation.config import require_steps

    require_steps(config)
    phases = build.phases(config)
    with CompilerProcess(topology.name, topology.slices) as compile_step:
        if search:
            longest = max(phases, key=lambda each: each.max_seq_length)
            devices = len(topology.devices)
            return profiling_search.search(config, longest, devices, compile_step, _log), []
        steps = [compile_step(config, phase) for phase in phases]
        if all(step.fits for step in steps):
            return steps, steps
        return steps, profiling_search.find_fitting(config, steps, compile_step, _log) or []


def parser() -> _flags.Parser:
    """Returns the parser of the command line."""
    parser = _flags.Parser("bertjax plan", __doc__, EPILOG)
    add = parser.add_argument
    _flags.add_config(parser, "bert:base")
    add("--topology", required=True, help="TPU slice: v5e:16x16, v5e-256, v5p-512 ...")
    add(
        "--slices",
        action=constraint_action(PositiveInt),
        default=1,
        metavar="N",
        help="number of such slices, connected by a network",
    )
    add("--mesh", help="mesh axes, such as data=64,fsdp=4; others are 1 (default: config.mesh)")
    add(
        "--search",
        action="store_true",
        help="compile and rank meshes, remat policies and microbatches",
    )
    _flags.add_json(parser, "print JSON instead of tables")
    return parser


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _print_step(step: Any, topology: Any) -> None:
    rows = [("step", f"{step.phase.batch_size} x {step.phase.max_seq_length} tokens")]
    rows += [("settings", _settings(step))]
    if not step.fits:
        short = f"{_bytes(step.memory.needed)} of {_bytes(step.memory.capacity)}"
        _print_table([*rows, ("memory", f"DOES NOT FIT: {short} per device")])
        return
    seconds, memory = step.seconds, step.memory
    share = memory["all"] / memory["capacity"]
    kinds = ("arguments", "temporaries", "results", "program")
    parts = ", ".join(f"{_bytes(memory[kind])} {kind}" for kind in kinds)
    rows.append(("memory", f"{_bytes(memory['all'])}, {share:.0%} of a device's: {parts}"))
    for size, dtype, dims, origin in step.largest[:3]:
        made_by = "/".join(origin.split("/")[-3:])
        rows.append(("", f"{_bytes(size)} {dtype}[{','.join(map(str, dims))}] {made_by}"))
    extra = step.flops * len(topology.devices) / step.model_flops - 1
    parts = f", {extra:.0%} of it rematerialised" if extra > 0.005 else ""
    if step.flops_8bit:
        parts += f", {step.flops_8bit / step.flops:.0%} in {step.quantized}"
    rows.append(("matmuls", f"{_flops(step.flops)} per device{parts}: {_time(seconds['matmuls'])}"))
    moved = _bytes(step.memory_bytes)
    rows.append(("traffic", f"{moved} to and from memory: {_time(seconds['memory'])}"))
    sent = sum(each.bytes for each in step.collectives)
    rows.append(("collectives", f"{_bytes(sent)} sent: {_time(seconds['collectives'])}"))
    rows += [("", line) for line in _collectives(step)]
    rows.append(("at least", f"{_time(seconds['step'])} per step"))
    rate = f"{_rate(step):,.0f} sequences/s, MFU {_mfu_text(step, topology)}"
    rows.append(("at most", rate))
    _print_table(rows)


def _rate(step: Any) -> float:
    return step.phase.batch_size / step.seconds["step"]


def _mfu_text(step: Any, topology: Any) -> str:
    from bertjax.profiling import plan as profiling_plan

    return f"{profiling_plan.compute_mfu(step, topology):.1%}"


def _collectives(step: Any) -> list[str]:
    """Returns one line per kind of collective and mesh axes, most bytes first."""
    together: dict[tuple[str, str, int], tuple[int, float]] = {}
    for each in step.collectives:
        key = each.kind, each.axes, each.devices
        times, sent = together.get(key, (0, 0.0))
        together[key] = times + each.times, sent + each.bytes
    return [
        f"{_bytes(sent)} {kind} along {axes} ({devices} devices), {times} times"
        for (kind, axes, devices), (times, sent) in sorted(
            together.items(), key=lambda item: -item[1][1]
        )
    ]


def _print_ranking(steps: Sequence[Any], topology: Any) -> None:
    """Prints one line per setting, in the given order."""
    print(f"{'':<3}  {'at least':>8}  {'sequences/s':>11}  {'MFU':>6}  {'memory':>7}  settings")
    for place, step in enumerate(steps, 1):
        if step.fits:
            rate = f"{_rate(step):,.0f}"
            cells = f"{_time(step.seconds['step']):>8}  {rate:>11}  {_mfu_text(step, topology):>6}"
            memory = _bytes(step.memory["all"])
        else:
            cells, memory = f"{'does not fit':<29}", _bytes(step.memory.needed)
        print(f"{place:>3}  {cells}  {memory:>7}  {_settings(step)}")
    print()


def _print_overrides(config: Any, steps: Sequence[Any]) -> None:
    from bertjax.profiling import search as profiling_search

    if words := profiling_search.to_overrides(config, steps):
        _print_table([("run it with", " ".join(words))])


def _print_run(steps: Sequence[Any], topology: Any) -> None:
    from bertjax.profiling.plan import SECONDS_PER_DAY

    seconds = sum(step.phase.steps * step.seconds["step"] for step in steps)
    chips, days, hours = topology.chips, seconds / SECONDS_PER_DAY, seconds / 3600
    long = f"{days:.3g} days" if days >= 1 else f"{hours:.2g} hours"
    paid = f"{hours * chips:,.0f}" if hours * chips >= 10 else f"{hours * chips:.2g}"
    _print_table([("the run", f"at least {long} on {chips} chips, {paid} chip-hours")])


def _print_table(rows: Sequence[tuple[str, str]]) -> None:
    for name, text in rows:
        print(f"{name:<12}{text}")
    print()


def _content(arguments: Any, topology: Any, steps: Sequence[Any], fit: Sequence[Any]) -> dict:
    content = {
        "config": arguments.config,
        "topology": topology.name,
        "slices": topology.slices,
        "chips": topology.chips,
        "steps": [_step_content(step, topology) for step in steps],
    }
    if arguments.search:
        return content
    content["that_fit"] = [_step_content(step, topology) for step in fit]
    if fit:
        seconds = sum(step.phase.steps * step.seconds["step"] for step in fit)
        content |= {"run_seconds": seconds, "chip_hours": seconds * topology.chips / 3600}
    return content


def _step_content(step: Any, topology: Any) -> dict[str, Any]:
    import dataclasses

    from bertjax.profiling import plan as profiling_plan

    content = dataclasses.asdict(step) | {"fits": step.fits}
    if step.fits:
        content["model_flops_utilisation"] = profiling_plan.compute_mfu(step, topology)
        content["sequences_per_second"] = _rate(step)
    return content


def _settings(step: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in step.settings.items())


def _bytes(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError


def _flops(count: float) -> str:
    return f"{count / 1e12:.3g} TFLOP"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
