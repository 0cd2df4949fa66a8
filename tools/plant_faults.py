"""Mutation testing: apply small faults to a copy of the package and report those that tests catch.

    tools/run python tools/plant_faults.py                       # every fault of tools/faults.toml
    tools/run python tools/plant_faults.py --only layers --jobs 2
    tools/run python tools/plant_faults.py --check               # check that every fault applies

Each fault of `tools/faults.toml` replaces a text that occurs exactly once in its file. The tests
listed with it run on the copy until the first failure: first those of the default run, then, if
these pass, the slow ones of `tools/test --all`. The table shows which of the two caught the fault,
or that it survived; any other exit status of pytest (for instance after a broken import) is an
"error". The exit status is 0 if all tests catch at least 95% of the faults, and the default run at
least 85%.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import json
import pathlib
import queue
import shutil
import subprocess
import sys
import tempfile
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
FAULTS = ROOT / "tools" / "faults.toml"
NOT_COPIED = (".git", ".venv", "__pycache__", ".*cache", "*.egg-info")
DEFAULT, ALL, SURVIVED, ERROR = "default", "--all", "survived", "error"
"""Verdicts: caught by the default run, only by `tools/test --all`, survived, or failed to run."""
PASSED, FAILED, NO_TESTS = 0, 1, 5
"""Exit statuses of pytest."""
REQUIRED_SHARE = {DEFAULT: 0.85, ALL: 0.95}
"""The share of all faults that each of the two runs must catch."""
TIMEOUT = 1200
"""Seconds until a fault counts as caught, because it may cause an endless loop."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """One change of the source that a test must detect.

    Attributes:
      name: The wrong behaviour.
      file: The changed file, relative to the root of the checkout.
      before: The text replaced, which occurs exactly once in the file.
      after: The replacement.
      tests: Files or folders of tests, relative to the root of the checkout.
    """

    name: str
    file: str
    before: str
    after: str
    tests: list[str]

    def changed(self, checkout: pathlib.Path) -> str:
        """The content of the file with the fault.

        Raises:
          ValueError: The text to replace does not occur exactly once.
        """
        source = (checkout / self.file).read_text(encoding="utf-8")
        count = source.count(self.before)
        if count != 1:
            raise ValueError(
                f"{self.name}: occurrences of {self.before!r} in {self.file}: "
                f"got {count}, expected 1"
            )
        return source.replace(self.before, self.after)


def main() -> int:
    """Runs the command line and returns its exit status."""
    arguments = _parser().parse_args()
    faults = [Fault(**entry) for entry in tomllib.loads(FAULTS.read_text())["fault"]]
    selected = [fault for fault in faults if arguments.only in f"{fault.file} {fault.name}"]
    if not selected:
        sys.exit(f"--only: no fault has {arguments.only!r} in its file or name")
    if arguments.check:
        return _check(selected)
    with tempfile.TemporaryDirectory(prefix="bertjax-faults-") as folder:
        copies: queue.Queue[pathlib.Path] = queue.Queue()
        for number in range(arguments.jobs):
            copies.put(_copy(pathlib.Path(folder) / str(number) / "checkout"))
        verdicts = _run(selected, copies, arguments)
    _print_table(selected, verdicts)
    shares = _shares(verdicts)
    return 0 if all(shares[run] >= enough for run, enough in REQUIRED_SHARE.items()) else 1


def _check(faults: list[Fault]) -> int:
    """Prints the faults that do not apply to the sources."""
    wrong = []
    for fault in faults:
        try:
            fault.changed(ROOT)
        except (OSError, ValueError) as error:
            wrong.append(str(error))
        wrong += [
            f"{fault.name}: {test} does not exist"
            for test in fault.tests
            if not (ROOT / test).exists()
        ]
    print("\n".join([*wrong, f"{len(faults)} faults, {len(wrong)} errors in the list"]))
    return 1 if wrong else 0


def _copy(checkout: pathlib.Path) -> pathlib.Path:
    """Copies this checkout, with a link to the real data next to it."""
    shutil.copytree(ROOT, checkout, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
    if (ROOT.parent / "shared").is_dir():
        (checkout.parent / "shared").symlink_to(ROOT.parent / "shared")
    return checkout


def _run(
    faults: list[Fault], copies: "queue.Queue[pathlib.Path]", arguments: argparse.Namespace
) -> dict[str, str]:
    def judge(fault: Fault) -> str:
        checkout = copies.get()
        try:
            path = checkout / fault.file
            source, changed = path.read_text(encoding="utf-8"), fault.changed(checkout)
            try:
                path.write_text(changed, encoding="utf-8")
                return _verdict(fault, checkout, arguments.pytest.split())
            finally:
                path.write_text(source, encoding="utf-8")
        finally:
            copies.put(checkout)

    verdicts = {}
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        running = {pool.submit(judge, fault): fault for fault in faults}
        for number, future in enumerate(concurrent.futures.as_completed(running), 1):
            fault = running[future]
            verdicts[fault.name] = future.result()
            print(f"[{number}/{len(faults)}] {verdicts[fault.name]}: {fault.name}", file=sys.stderr)
    return verdicts


def _verdict(fault: Fault, checkout: pathlib.Path, options: list[str]) -> str:
    for run, which in ((DEFAULT, []), (ALL, ["--all", "-m", "slow"])):
        command = [sys.executable, "-m", "pytest", "-x", "-n0", "--no-header", *which, *options]
        try:
            done = subprocess.run(
                [*command, *fault.tests],
                cwd=checkout,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return run
        if done.returncode == FAILED:
            return run
        if done.returncode not in (PASSED, NO_TESTS):
            return ERROR
    return SURVIVED


def _shares(verdicts: dict[str, str]) -> dict[str, float]:
    """The shares of faults caught by the default run and by all tests."""
    counts = collections.Counter(verdicts.values())
    by_default = counts[DEFAULT] / len(verdicts)
    return {DEFAULT: by_default, ALL: by_default + counts[ALL] / len(verdicts)}


def _print_table(faults: list[Fault], verdicts: dict[str, str]) -> None:
    width = max(len(fault.name) for fault in faults)
    print(f"{'caught by':<9}  {'fault':<{width}}  file")
    for fault in sorted(faults, key=lambda fault: (verdicts[fault.name], fault.file)):
        print(f"{verdicts[fault.name]:<9}  {fault.name:<{width}}  {fault.file}")
    shares = {f"caught by {run}": round(share, 3) for run, share in _shares(verdicts).items()}
    print(json.dumps({"faults": len(faults), **collections.Counter(verdicts.values()), **shares}))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", default="", metavar="TEXT", help="only faults with TEXT in their file or name")
    add("--jobs", type=int, default=1, metavar="N", help="number of parallel jobs (default 1)")
    add(
        "--pytest",
        default="",
        metavar="OPTIONS",
        help="more options of pytest, in one argument",
    )
    add("--check", action="store_true", help="run no tests: only check that every fault applies")
    return parser


if __name__ == "__main__":
    sys.exit(main())
