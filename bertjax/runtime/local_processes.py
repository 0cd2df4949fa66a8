"""Run one training command as several processes on this machine, joined by jax.distributed."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from bertjax.errors import UserError
from bertjax.runtime.children import Children, describe_exit
from bertjax.runtime.rendezvous import COORDINATOR, PROCESS, PROCESSES

_SECONDS_TO_END = 10.0
_DEVICES_FLAG = "--xla_force_host_platform_device_count"


def run(words: Sequence[str], num_processes: int, num_devices: int | None = None) -> int:
    """Runs a command of bertjax as several processes and waits for all.

    Output of processes other than the first is printed with the process number in front. When a
    process fails, the others are killed if they do not end by themselves within seconds, and the
    failure is printed.

    Args:
      words: The words after `bertjax`.
      num_processes: How many processes.
      num_devices: CPU devices of each process; None for the devices that JAX finds.

    Returns:
      0, or the exit status of the first process that failed; 128 + the signal if this process
      received one.
    """
    command = [sys.executable, "-m", "bertjax", *words]
    address = f"127.0.0.1:{_free_port()}"
    with Children() as children:
        processes = [
            children.start(
                command,
                env=_environment(address, num_processes, number, num_devices),
                stdout=subprocess.PIPE if number else None,
                stderr=subprocess.STDOUT if number else None,
                start_new_session=True,  # a terminal's Ctrl-C would arrive twice
            )
            for number in range(num_processes)
        ]
        readers = [
            threading.Thread(target=_print_lines, args=(number, process.stdout), daemon=True)
            for number, process in enumerate(processes)
            if process.stdout is not None
        ]
        for reader in readers:
            reader.start()
        failed = _wait_for_failure(children)
        if failed is not None:
            _end_others(children, processes, failed)
        for reader in readers:
            reader.join(_SECONDS_TO_END)
    if failed is None:
        return 0
    if children.signal:
        return 128 + children.signal
    return failed.returncode if failed.returncode >= 0 else 128 - failed.returncode


def _wait_for_failure(children: Children) -> subprocess.Popen | None:
    """Waits until a process fails, which is returned, or all have succeeded."""
    while children.running:
        for process in children.poll():
            if process.returncode:
                return process
    return None


def _end_others(
    children: Children, processes: Sequence[subprocess.Popen], failed: subprocess.Popen
) -> None:
    """Waits some seconds for the other processes, then kills them: collectives wait forever."""
    end = time.monotonic() + _SECONDS_TO_END
    while time.monotonic() < end and children.running:
        children.poll()
    killed = [str(n) for n, process in enumerate(processes) if process in children.running]
    children.kill()
    while children.running:
        children.poll()
    if children.signal:
        return
    others = f", process {', '.join(killed)} was killed" if killed else ""
    advice = "the same command resumes from the last checkpoint"
    if failed.returncode == UserError.exit_status:
        advice = "fix the error above first"
    number, how = processes.index(failed), describe_exit(failed.returncode)
    print(
        f"bertjax launch: process {number} ended with {how}{others}; {advice}",
        file=sys.stderr,
        flush=True,
    )


def _environment(
    address: str, num_processes: int, number: int, num_devices: int | None
) -> dict[str, str]:
    environment = {
        **os.environ,
        COORDINATOR: address,
        PROCESSES: str(num_processes),
        PROCESS: str(number),
    }
    if num_devices is not None:
        flags = os.environ.get("XLA_FLAGS", "").split()
        flags = [flag for flag in flags if not flag.startswith(_DEVICES_FLAG)]
        environment["XLA_FLAGS"] = " ".join([*flags, f"{_DEVICES_FLAG}={num_devices}"])
        environment["JAX_PLATFORMS"] = "cpu"
    return environment


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _print_lines(number: int, lines) -> None:
    for line in lines:
        text = line.decode(errors="replace").rstrip("\n")
        print(f"[{number}] {text}", file=sys.stderr, flush=True)
