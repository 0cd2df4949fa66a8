"""Counts the cycles that the TPU compiler schedules for a training step; prints JSON.

    python tools/measure_schedule.py --config configs/bert.py:base --topology v5e-1 \
        --config.data.phases='()' --config.data.max_seq_length=512 --config.data.batch_size=32

The roofline of `bertjax plan` includes matmuls and memory traffic, but no other computation, such
as random bits and activations. These are in the schedules that the TPU compiler (`pip install
'bertjax[tpu]'`) can dump: bundles of instructions, one per cycle, and loops over them. Runs
`bertjax plan` with the same arguments, which takes minutes more than without dumps, and gigabytes
of a temporary folder.

Instructions that run in some iterations of a loop only, such as the epilogue of a matmul, are
counted in every iteration, and stalls on memory are not counted: the count is accurate for
elementwise loops, but not for matmuls.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from bertjax import build
from bertjax.config import load_config, split_overrides
from bertjax.errors import UserError
from bertjax.profiling import hlo, traffic

FLAGS = "--xla_jf_dump_to={} --xla_jf_dump_llo_text=true --xla_jf_dump_hlo_text=true"
_BUNDLE = re.compile(r" *(?:0x)?[0-9a-f]+ *(LB)?[A-Z]* *: *>* *\{")
_TRIPS = re.compile(r"scmp\.\w+\.s32\.totalorder %s\S+, (\d+) /\* loop exit test")
_BACK = "sbr.rel"
_SCHEDULE = re.compile(r"(\d+)-(.+)-\d+-final_bundles\.txt")


class Part(NamedTuple):
    """An instruction of the program.

    Attributes:
      name: The name in the HLO.
      cycles: Cycles of its schedule per execution.
      bytes: Bytes moved to and from memory per execution.
      times: Number of executions per step.
      origin: The operation of the model that it was compiled from.
    """

    name: str
    cycles: int
    bytes: int
    times: int
    origin: str


def bundles(schedule: str) -> Iterator[tuple[bool, str]]:
    """Yields for each bundle whether it is the start of a loop, and its text."""
    begins, lines = False, []
    for line in schedule.splitlines():
        if found := _BUNDLE.match(line):
            if lines:
                yield begins, "\n".join(lines)
            begins, lines = found[1] is not None, []
        if lines or found:
            lines.append(line)
    if lines:
        yield begins, "\n".join(lines)


def cycles(schedule: str) -> int:
    """Number of bundles executed: those of a loop count once per iteration."""
    open_loops, trips = [0], 1
    for begins, text in bundles(schedule):
        if begins:
            open_loops.append(0)
        open_loops[-1] += 1
        if found := _TRIPS.search(text):
            trips = int(found[1])
        if trips > 1 and _BACK in text and len(open_loops) > 1:
            turned = trips * open_loops.pop()
            open_loops[-1] += turned
            trips = 1
    return sum(open_loops)


def parts(folder: pathlib.Path) -> list[Part]:
    """Instructions that compute or move data, those with the most cycles first."""
    programs = sorted(folder.glob("*-TLP-hlo.txt"), key=lambda path: path.stat().st_size)
    if not programs:
        return []
    program = hlo.parse(programs[-1].read_text())
    # Of a part with several schedules, the last one is executed.
    schedules = {}
    for path in sorted(folder.glob("*final_bundles.txt")):
        found = _SCHEDULE.fullmatch(path.name)
        if found and not found[2].endswith("schedule-analysis"):
            schedules[found[2]] = path
    counted = {name: cycles(path.read_text()) for name, path in schedules.items()}
    found = (
        Part(each.name, counted.get(each.name, 0), moved, times, each.origin)
        for each, times, moved in traffic.traffic_by_instruction(program)
        if each.name in counted or moved
    )
    return sorted(found, key=lambda part: -part.cycles * part.times)


def main() -> None:
    """Compiles the step, counts cycles and prints them."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config", required=True, help="config file; accepts all other options of bertjax plan"
    )
    rest, overrides = split_overrides(sys.argv[1:])
    config = parser.parse_known_args(rest)[0].config
    try:
        phases = build.phases(load_config(config, overrides))
    except UserError as error:
        sys.exit(f"measure_schedule: error: {error}")
    if len(phases) > 1:
        sys.exit(
            f"measure_schedule: error: phases of {config}: got {len(phases)}, expected one; "
            "add --config.data.phases='()'"
        )
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "LIBTPU_INIT_ARGS": FLAGS.format(folder)}
        command = [sys.executable, "-m", "bertjax", "plan", "--json", *sys.argv[1:]]
        done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL)
        if done.returncode:
            sys.exit(done.returncode)
        found = parts(pathlib.Path(folder))
    if not any(part.cycles for part in found):
        sys.exit("measure_schedule: error: this version of libtpu wrote no schedules")
    content = {
        "cycles": sum(part.cycles * part.times for part in found),
        "bytes": sum(part.bytes * part.times for part in found),
        "parts": [part._asdict() for part in found],
    }
    print(json.dumps(content, indent=2))


if __name__ == "__main__":
    main()
