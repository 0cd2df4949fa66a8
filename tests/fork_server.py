"""Run commands in processes forked from one that has imported JAX.

Importing JAX, Flax, Optax and Orbax takes most of the time of a short command. A server imports
them once and forks a process for each command, which then does what `python -m bertjax` does. The
server does not import bertjax: every command imports its own modules, in its own order. Only the
main thread is forked, so no library may start a thread when imported; OpenBLAS, an exception, ends
its threads before a fork.
"""

import concurrent.futures
import contextlib
import gc
import importlib
import json
import os
import pathlib
import runpy
import signal
import socket
import subprocess
import sys
import threading

IMPORTED = ("flax.linen", "ml_collections", "optax", "orbax.checkpoint")
IMPORTED += ("jaxtyping", "scipy.special", "tokenizers")

_MAX_BYTES = 2**17


class ForkServer:
    """Runs `bertjax` commands in forked processes, one at a time.

    Args:
      environment: The environment of the commands, except for XLA_FLAGS.
    """

    def __init__(self, environment: dict[str, str]):
        self._lock = threading.Lock()
        self._connection, server_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with server_socket:
            # Pipes, because Python's streams depend on the kind of file, and a command's are pipes.
            pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            self._server = subprocess.Popen(
                [sys.executable, __file__, str(server_socket.fileno())],
                **{"env": environment, "pass_fds": [server_socket.fileno()], "text": True, **pipes},
            )

    def run(
        self, arguments: list[str], *, input: str, timeout: float, cwd: os.PathLike, xla_flags: str
    ) -> subprocess.CompletedProcess:
        """Runs `bertjax ARGUMENTS...` to its end, for at most `timeout` seconds."""
        request = {"arguments": arguments, "cwd": os.fspath(cwd), "xla_flags": xla_flags}
        with self._lock:
            (stdin, to_stdin), (out, stdout), (errors, stderr) = (os.pipe() for _ in range(3))
            streams = [stdin, stdout, stderr]
            socket.send_fds(self._connection, [json.dumps(request).encode()], streams)
            for number in streams:
                os.close(number)
            with concurrent.futures.ThreadPoolExecutor() as threads:
                writing = threads.submit(_write, to_stdin, input)
                printed = [threads.submit(_read, number) for number in (out, errors)]
                status = self._wait_for_command(timeout)
        writing.result()
        texts = [reading.result() for reading in printed]
        return subprocess.CompletedProcess(["bertjax", *arguments], status, *texts)

    def close(self) -> None:
        """Ends the server."""
        self._connection.close()
        self._server.communicate()

    def _wait_for_command(self, timeout: float) -> int:
        """Returns the exit status as `subprocess` does: negative for a signal."""
        pid = self._receive()
        try:
            self._connection.settimeout(timeout)
            return self._receive()
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            self._connection.settimeout(None)
            self._receive()
            raise
        finally:
            self._connection.settimeout(None)

    def _receive(self) -> int:
        reply = self._connection.recv(_MAX_BYTES)
        if not reply:
            raise RuntimeError(f"the fork server ended:\n{self._server.communicate()[1]}")
        return int(reply)


def _write(number: int, text: str) -> None:
    with contextlib.suppress(BrokenPipeError), open(number, "w") as pipe:
        pipe.write(text)


def _read(number: int) -> str:
    with open(number) as pipe:
        return pipe.read()


def serve(connection: socket.socket) -> dict | None:
    """Forks a process for each request, which returns the request; None in the server, at the end.

    Raises:
      RuntimeError: A library has started a thread.
    """
    while True:
        message, streams, *_ = socket.recv_fds(connection, _MAX_BYTES, 3)
        if not message:
            return None
        if (pid := os.fork()) == 0:
            connection.close()
            for target, number in enumerate(streams):
                os.dup2(number, target)
                os.close(number)
            return json.loads(message)
        if len(threads := os.listdir("/proc/self/task")) > 1:
            raise RuntimeError(f"cannot fork: got {len(threads)} threads, expected 1")
        for number in streams:
            os.close(number)
        connection.send(str(pid).encode())
        _, status = os.waitpid(pid, 0)
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())


def run_command(arguments: list[str], cwd: str, xla_flags: str) -> None:
    """Does what `python -m bertjax ARGUMENTS...` does in the folder `cwd`."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["XLA_FLAGS"] = xla_flags
    os.chdir(cwd)
    sys.path[0] = cwd
    sys.argv[1:] = arguments
    # NumPy's global generator; a fork seeds that of `random`.
    sys.modules["numpy"].random.seed()
    runpy.run_module("bertjax", run_name="__main__", alter_sys=True)


def main() -> None:
    # Ctrl-C is sent to all processes of a terminal; the command ends the server.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    compiled_programs = importlib.import_module("compiled_programs")
    # Not this folder: the names of its folders are also names of packages.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parent.parent)
    for name in IMPORTED:
        importlib.import_module(name)
    compiled_programs.write_atomically()
    gc.collect()
    gc.freeze()  # otherwise a collection in a command would copy the memory of all modules
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    if request is not None:
        run_command(**request)


if __name__ == "__main__":
    main()
