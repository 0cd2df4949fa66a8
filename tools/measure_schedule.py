"""Counts the cycles that the compiler for TPUs has scheduled for a training step; prints JSON.

    python tools/measure_schedule.py --config configs/bert.py:base --topology v5e-1 \
        --config.data.phases='()' --config.data.max_seq_length=512 --config.data.batch_size=32

`bertjax plan` counts products and bytes. What else a chip computes, such as random bits and
activations, its roofline leaves out; it stands in the schedules that the compiler for TPUs
(`pip install 'bertjax[tpu]'`) writes down when it is asked to: bundles of instructions, one a
cycle, and loops over them. `bertjax plan` is run with the same arguments, which takes minutes more
than without, and gigabytes of a temporary folder.

What is only done in some turns of a loop is counted in each, such as what follows a product's last
part, and waiting for memory in none: so a part that is one loop over elements is measured well,
a product is not.
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
from bertjax.profiling import hlo, memory

FLAGS = "--xla_jf_dump_to={} --xla_jf_dump_llo_text=true --xla_jf_dump_hlo_text=true"
_BUNDLE = re.compile(r" *(?:0x)?[0-9a-f]+ *(LB)?[A-Z]* *: *>* *\{")
_TRIPS = re.compile(r"scmp\.\w+\.s32\.totalorder %s\S+, (\d+) /\* loop exit test")
_BACK = "sbr.rel"
_SCHEDULE = re.compile(r"(\d+)-(.+)-\d+-final_bundles\.txt")


class Part(NamedTuple):
    """An instruction of the program.

    Attributes:
      name: Its own.
      cycles: Of its schedule, each time.
      bytes: That it moves to and from memory, each time.
      times: How often a step runs it.
      origin: Which operation of the model it was made of.
    """

    name: str
    cycles: int
    bytes: int
    times: int
    origin: str


def bundles(schedule: str) -> Iterator[tuple[bool, str]]:
    """Of each bundle whether a loop begins with it, and its text."""
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
    """Of all bundles, those of a loop as often as it turns."""
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
    """All that computes or moves something, what takes most cycles first."""
    programs = sorted(folder.glob("*-TLP-hlo.txt"), key=lambda path: path.stat().st_size)
    if not programs:
        return []
    program = hlo.parse(programs[-1].read_text())
    # A part that was compiled in several ways is run as it was compiled last.
    schedules = {}
    for path in sorted(folder.glob("*final_bundles.txt")):
        found = _SCHEDULE.fullmatch(path.name)
        if found and not found[2].endswith("schedule-analysis"):
            schedules[found[2]] = path
    counted = {name: cycles(path.read_text()) for name, path in schedules.items()}
    found = (
        Part(each.name, counted.get(each.name, 0), moved, times, each.origin)
        for each, times, moved in memory.traffic_by_instruction(program)
        if each.name in counted or moved
    )
    return sorted(found, key=lambda part: -part.cycles * part.times)


def main() -> None:
    """Compiles, and counts."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config", required=True, help="config file; further options: bertjax plan"
    )
    rest, overrides = split_overrides(sys.argv[1:])
    config = parser.parse_known_args(rest)[0].config
    try:
        phases = build.phases(load_config(config, overrides))
    except UserError as error:
        sys.exit(f"measure_schedule: error: {error}")
    if len(phases) > 1:
        sys.exit(
            f"measure_schedule: error: a step of one shape is measured, {config} has "
            f"{len(phases)} phases: add --config.data.phases='()'"
        )
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "LIBTPU_INIT_ARGS": FLAGS.format(folder)}
        command = [sys.executable, "-m", "bertjax", "plan", "--json", *sys.argv[1:]]
        done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL)
        if done.returncode:
            sys.exit(done.returncode)
        found = parts(pathlib.Path(folder))
    if not any(part.cycles for part in found):
        sys.exit("measure_schedule: error: this version of libtpu has written no schedules")
    content = {
        "cycles": sum(part.cycles * part.times for part in found),
        "bytes": sum(part.bytes * part.times for part in found),
        "parts": [part._asdict() for part in found],
    }
    print(json.dumps(content, indent=2))


if __name__ == "__main__":
    main()
