"""Start a run as several processes on this machine, as on several hosts."""

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from bertjax.constraints import PositiveInt, checked
from bertjax.errors import UserError
from bertjax.runtime.rendezvous import COORDINATOR, PROCESS, PROCESSES

EPILOG = """\
examples:
  bertjax launch --processes 4 --devices 2 -- pretrain --config configs/quickstart.py \\
      --workdir runs/quickstart
  bertjax launch --processes 2 -- finetune --config configs/glue.py:rte --init runs/bert \\
      --data glue --workdir runs/rte

The processes join through jax.distributed on a free port of this machine. --devices gives each so
many devices of the CPU; without it each has what JAX finds. Lines of other processes than the first
have their number before them. Ctrl-C and SIGTERM are passed on: all finish the same step, save and
end. A process that dies takes the others with it, and is named; the same command continues from the
last checkpoint, with any number of processes.

On clusters the scheduler starts the processes: see tools/launch/, and --distributed of the verb.
"""

_VERBS = ("pretrain", "finetune")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SECONDS_TO_END, _SECONDS_BETWEEN_LOOKS = 10.0, 0.1
_MISTAKE = 2
"""The exit status of a command that the user has to fix."""
_DEVICES_FLAG = "--xla_force_host_platform_device_count"


def main(argv: list[str]) -> None:
    """Starts the processes and waits for them."""
    from bertjax.overrides import split_at_dashes

    own, words = split_at_dashes(argv)
    arguments = _parser().parse_args(own)
    if not words or words[0] not in _VERBS:
        raise UserError(f"expected `-- VERB ...` with a VERB of {', '.join(_VERBS)}")
    code = _Job(words, arguments.processes, arguments.devices).wait()
    if code:
        raise SystemExit(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bertjax launch",
        usage="bertjax launch [--processes N] [--devices M] -- VERB ...",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--processes", action=checked(PositiveInt), default=2, help="how many (default 2)"
    )
    parser.add_argument(
        "--devices", action=checked(PositiveInt), help="devices of the CPU that each has"
    )
    return parser


class _Job:
    """The processes of a job."""

    def __init__(self, words: Sequence[str], processes: int, devices: int | None):
        self._asked: int | None = None
        address = f"127.0.0.1:{_free_port()}"
        command = [sys.executable, "-m", "bertjax", *words]
        self._processes = [
            subprocess.Popen(
                command,
                env=_environment(address, processes, number, devices),
                stdout=subprocess.PIPE if number else None,
                stderr=subprocess.STDOUT if number else None,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a terminal's Ctrl-C would come twice
            )
            for number in range(processes)
        ]
        self._readers = [
            threading.Thread(target=_show, args=(number, process.stdout), daemon=True)
            for number, process in enumerate(self._processes)
            if process.stdout is not None
        ]
        for reader in self._readers:
            reader.start()

    def wait(self) -> int:
        """Waits for all; the exit status is that of the first which did not end well."""
        before = {number: signal.signal(number, self._pass_on) for number in _SIGNALS}
        try:
            first = self._first_to_fail()
            if first is not None:
                self._end_the_others(first)
            for reader in self._readers:
                reader.join(_SECONDS_TO_END)
        finally:
            for process in self._processes:
                process.kill()
            for number, handler in before.items():
                signal.signal(number, handler)
        return 0 if first is None else _status(self._processes[first].returncode)

    def _first_to_fail(self) -> int | None:
        """Waits until all have ended, or one has ended badly, and gives its number."""
        while True:
            codes = [process.poll() for process in self._processes]
            failed = [number for number, code in enumerate(codes) if code]
            if failed:
                return failed[0]
            if None not in codes:
                return None
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _end_the_others(self, first: int) -> None:
        """Gives the others a moment to end by themselves; what waits for the lost one cannot."""
        end = time.monotonic() + _SECONDS_TO_END
        while time.monotonic() < end and any(p.poll() is None for p in self._processes):
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        left = [str(n) for n, process in enumerate(self._processes) if process.poll() is None]
        code = self._processes[first].returncode
        if self._asked is None:
            took = f"; it takes process {', '.join(left)} with it" if left else ""
            advice = "the same command continues from the last checkpoint"
            if code == _MISTAKE:
                advice = "what it says above has to be mended first"
            print(
                f"bertjax launch: process {first} {_how(code)}{took}; {advice}",
                file=sys.stderr,
                flush=True,
            )

    def _pass_on(self, number: int, _) -> None:
        """To every process; the second time nobody waits for the step in progress."""
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(number if self._asked is None else signal.SIGKILL)
        self._asked = number


def _environment(address: str, processes: int, number: int, devices: int | None) -> dict[str, str]:
    environment = {
        **os.environ,
        COORDINATOR: address,
        PROCESSES: str(processes),
        PROCESS: str(number),
    }
    if devices is not None:
        flags = os.environ.get("XLA_FLAGS", "").split()
        flags = [flag for flag in flags if not flag.startswith(_DEVICES_FLAG)]
        environment["XLA_FLAGS"] = " ".join([*flags, f"{_DEVICES_FLAG}={devices}"])
        environment["JAX_PLATFORMS"] = "cpu"
    return environment


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _show(number: int, lines) -> None:
    for line in lines:
        text = line.decode(errors="replace").rstrip("\n")
        print(f"[{number}] {text}", file=sys.stderr, flush=True)


def _how(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit status {code}"


def _status(code: int) -> int:
    return 128 - code if code < 0 else code
