"""Wait for all processes of a job over TCP before `jax.distributed` connects them.

JAX aborts a process whose peers do not connect, without naming the missing ones. This module does
not import JAX.
"""

import contextlib
import math
import os
import socket
import time

from bertjax.errors import TemporaryError, UserError

COORDINATOR = "BERTJAX_COORDINATOR"
PROCESSES = "BERTJAX_PROCESSES"
PROCESS = "BERTJAX_PROCESS"
"""Environment variables of a process in a job of several: HOST:PORT of process 0, the number of
processes, and the index of this one."""

_TIMEOUT_VARIABLE, _TIMEOUT_SECONDS = "BERTJAX_INITIALIZATION_TIMEOUT", 300
_SECONDS_BETWEEN_CALLS = 0.2
_REPLY_TIMEOUT_SECONDS = 10.0
_ALL_HERE = "all here"


def rendezvous(address: str, count: int, number: int) -> None:
    """Wait until all processes are connected: 300 s, or BERTJAX_INITIALIZATION_TIMEOUT.

    Process 0 listens, the others connect to it and get its reply: that all are present, or which
    are missing.

    Args:
      address: HOST:PORT of process 0; the port is free again afterwards.
      count: Number of processes.
      number: Index of this process, from 0.

    Raises:
      TemporaryError: Not all processes connected in time; raised in every process that did.
      UserError: The address is invalid.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise UserError(f"{COORDINATOR}: got {address!r}, expected HOST:PORT of process 0")
    if not 0 <= number < count:
        raise UserError(
            f"{PROCESS}: got {number}, expected an integer from 0 to {count - 1}, as "
            f"{PROCESSES} is {count}"
        )
    seconds = read_timeout(_TIMEOUT_VARIABLE, _TIMEOUT_SECONDS)
    end = time.monotonic() + seconds
    if number == 0:
        reply = _listen(int(port), count, end, seconds)
    else:
        reply = _call(host, int(port), number, end, seconds)
    if reply != _ALL_HERE:
        raise TemporaryError(reply)


def read_timeout(variable: str, default: float) -> float:
    """Read a timeout in seconds from an environment variable.

    Raises:
      UserError: The value is not a positive number.
    """
    text = os.environ.get(variable, str(default))
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise UserError(f"{variable}: got {text!r}, expected a positive number of seconds")
    return seconds


def _listen(port: int, count: int, end: float, seconds: float) -> str:
    """Accept the connections of the other processes, and reply to all of them at the end."""
    with contextlib.ExitStack() as calls:
        try:
            listener = calls.enter_context(socket.create_server(("", port)))
        except OSError as error:
            raise UserError(
                f"{COORDINATOR}: cannot listen on port {port} ({error.strerror}); choose a free one"
            ) from None
        here = {0: None}
        while len(here) < count and (left := end - time.monotonic()) > 0:
            listener.settimeout(left)
            with contextlib.suppress(TimeoutError, ValueError):
                call = calls.enter_context(listener.accept()[0])
                call.settimeout(_REPLY_TIMEOUT_SECONDS)
                here[int(call.recv(16))] = call
        missing = [str(number) for number in range(count) if number not in here]
        reply = _ALL_HERE
        if missing:
            reply = (
                f"process {', '.join(missing)} of {count} did not connect within {seconds:g} s; "
                f"look for its error, or raise {_TIMEOUT_VARIABLE}"
            )
        for call in here.values():
            if call is not None:
                with contextlib.suppress(OSError):
                    call.sendall(reply.encode())
        return reply


def _call(host: str, port: int, number: int, end: float, seconds: float) -> str:
    no_reply = (
        f"process 0 at {host}:{port} did not reply within {seconds:g} s; look for its "
        f"error, or raise {_TIMEOUT_VARIABLE}"
    )
    while time.monotonic() < end:
        try:
            with socket.create_connection((host, port), timeout=_REPLY_TIMEOUT_SECONDS) as call:
                call.sendall(str(number).encode())
                call.settimeout(max(0.0, end - time.monotonic()) + _REPLY_TIMEOUT_SECONDS)
                return call.recv(1024).decode() or no_reply
        except OSError:
            time.sleep(_SECONDS_BETWEEN_CALLS)
    return no_reply
