"""Wait for all processes of a job before `jax.distributed` connects them; imports no JAX.

JAX ends a process whose peers do not arrive, and does not say which peer is missing.
"""

import contextlib
import math
import os
import socket
import time

from bertjax.errors import UserError

COORDINATOR = "BERTJAX_COORDINATOR"
PROCESSES = "BERTJAX_PROCESSES"
PROCESS = "BERTJAX_PROCESS"
"""The environment of a process that is one of several: HOST:PORT of the first, how many, which."""

_SECONDS_TO_JOIN, _USUAL_SECONDS = "BERTJAX_SECONDS_TO_JOIN", 300
_SECONDS_BETWEEN_CALLS = 0.2
_SECONDS_FOR_THE_ANSWER = 10.0
_ALL_HERE = "all here"


def rendezvous(address: str, count: int, number: int) -> None:
    """Waits until all processes have called: 300 s, or as many as BERTJAX_SECONDS_TO_JOIN says.

    Args:
      address: HOST:PORT of the first process; the port is free again afterwards.
      count: How many processes there are.
      number: Which of them this is, from 0.

    Raises:
      UserError: not all came in time, in every process that did; or the address is none.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise UserError(f"coordinator {address!r}: expected HOST:PORT")
    if not 0 <= number < count:
        raise UserError(f"process {number} of {count}: expected a number from 0 to {count - 1}")
    seconds = read_timeout(_SECONDS_TO_JOIN, _USUAL_SECONDS)
    end = time.monotonic() + seconds
    if number == 0:
        answer = _listen(int(port), count, end, seconds)
    else:
        answer = _call(host, int(port), number, end, seconds)
    if answer != _ALL_HERE:
        raise UserError(answer)


def read_timeout(variable: str, usual: float) -> float:
    """For how many seconds processes wait for each other, by the environment.

    Raises:
      UserError: it says something else.
    """
    text = os.environ.get(variable, str(usual))
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise UserError(f"{variable}={text}: expected a number of seconds")
    return seconds


def _listen(port: int, count: int, end: float, seconds: float) -> str:
    """Takes the calls of the others, and answers all of them at once."""
    with contextlib.ExitStack() as calls:
        try:
            listener = calls.enter_context(socket.create_server(("", port)))
        except OSError as error:
            raise UserError(f"port {port} of this host is not free: {error.strerror}") from None
        here = {0: None}
        while len(here) < count and (left := end - time.monotonic()) > 0:
            listener.settimeout(left)
            with contextlib.suppress(TimeoutError, ValueError):
                call = calls.enter_context(listener.accept()[0])
                call.settimeout(_SECONDS_FOR_THE_ANSWER)
                here[int(call.recv(16))] = call
        missing = [str(number) for number in range(count) if number not in here]
        answer = _ALL_HERE
        if missing:
            answer = f"process {', '.join(missing)} of {count} did not come within {seconds:g} s"
        for call in here.values():
            if call is not None:
                with contextlib.suppress(OSError):
                    call.sendall(answer.encode())
        return answer


def _call(host: str, port: int, number: int, end: float, seconds: float) -> str:
    silent = f"process 0 at {host}:{port} did not answer within {seconds:g} s"
    while time.monotonic() < end:
        try:
            with socket.create_connection((host, port), timeout=_SECONDS_FOR_THE_ANSWER) as call:
                call.sendall(str(number).encode())
                call.settimeout(max(0.0, end - time.monotonic()) + _SECONDS_FOR_THE_ANSWER)
                return call.recv(1024).decode() or silent
        except OSError:
            time.sleep(_SECONDS_BETWEEN_CALLS)
    return silent
