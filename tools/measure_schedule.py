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
from bertjax.train import hlo

FLAGS = "--xla_jf_dump_to={} --xla_jf_dump_llo_text=true --xla_jf_dump_hlo_text=true"
SHOWN = 20
_BUNDLE = re.compile(r" *(?:0x)?[0-9a-f]+ *(LB)?[A-Z]* *: *>* *\{")
_TRIPS = re.compile(r"scmp\.\w+\.s32\.totalorder %s\S+, (\d+) /\* loop exit test")
_BACK = "sbr.rel"
_SCHEDULE = re.compile(r"(\d+)-(.+)-\d+-final_bundles\.txt")


class Part(NamedTuple):
    """An instruction of the program that has a schedule of its own."""

    name: str
    cycles: int
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
    """All that has a schedule, those with the most cycles first."""
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
    made = []
    for name, computation in program.computations.items():
        for each in computation.values():
            if each.name in schedules and program.runs.get(name):
                count = cycles(schedules[each.name].read_text())
                made.append(Part(each.name, count, program.runs[name], each.origin))
    return sorted(made, key=lambda part: -part.cycles * part.times)


def main() -> None:
    """Compiles, and counts."""
    words = sys.argv[1:]
    if not words or {"-h", "--help"} & set(words):
        print(__doc__)
        return
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "LIBTPU_INIT_ARGS": FLAGS.format(folder)}
        command = [sys.executable, "-m", "bertjax", "plan", "--json", *words]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(done.returncode)
        steps = json.loads(done.stdout)["steps"]
        if len(steps) > 1:
            sys.exit(
                "measure_schedule: error: a step of one shape is measured, this run has more: "
                "add --config.data.phases='()'"
            )
        found = parts(pathlib.Path(folder))
    if not found:
        sys.exit("measure_schedule: error: this version of libtpu has written no schedules")
    content = {
        "cycles": sum(part.cycles * part.times for part in found),
        "memory_bytes": steps[0]["memory_bytes"],
        "largest": [part._asdict() for part in found[:SHOWN]],
    }
    print(json.dumps(content, indent=2))


if __name__ == "__main__":
    main()
