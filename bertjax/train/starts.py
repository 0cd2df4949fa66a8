"""Record every start of a run in `starts.jsonl`: time, command, devices, versions."""

import contextlib
import datetime
import json
import os
import pathlib
import shlex
import sys
from collections.abc import Mapping
from typing import Any

import jax

import bertjax
from bertjax.train.hooks import Hook, Run, Values

FILE = "starts.jsonl"


class StartsFile(Hook):
    """Appends a record of this process to `starts.jsonl` after its first step.

    A process that fails before, for instance for lack of memory, leaves the folder free for another
    config.

    Args:
      workdir: Folder of the run, or of a seed.
    """

    def __init__(self, workdir: str | os.PathLike):
        self._path = pathlib.Path(workdir) / FILE
        self._record: dict[str, Any] | None = None

    def on_train_begin(self, run: Run, state: Any, restored: Mapping[str, Any]) -> None:
        if jax.process_index() != 0:
            return
        now = datetime.datetime.now(datetime.UTC)
        devices = jax.devices()
        self._record = {
            "time": now.isoformat(timespec="seconds"),
            "first_step": run.first_step,
            "command": command(sys.argv),
            "device": devices[0].device_kind,
            "num_devices": len(devices),
            "num_processes": jax.process_count(),
            "bertjax": bertjax.__version__,
            "jax": jax.__version__,
        }

    def on_metrics(self, step: int, values: Values) -> None:
        if self._record is not None:
            # A process that was killed while it wrote leaves a part of a line.
            content = self._path.read_bytes() if self._path.exists() else b""
            end = b"" if content.endswith(b"\n") or not content else b"\n"
            with self._path.open("ab") as file:
                file.write(end + json.dumps(self._record).encode() + b"\n")
            self._record = None


def command(argv: list[str]) -> str:
    """The command line of a process, as a shell accepts it.

    Args:
      argv: `sys.argv` of the process.
    """
    program, *words = argv or [""]
    path = pathlib.PurePath(program)
    if path.name == "bertjax" or path.parts[-2:] == ("bertjax", "__main__.py"):
        return shlex.join(["bertjax", *words])
    return shlex.join(["python", *filter(None, [program]), *words])


def read_starts(workdir: str | os.PathLike) -> list[dict[str, Any]]:
    """Reads the records of a run, oldest first; incomplete lines are skipped.

    Runs of versions that did not write the file have none.
    """
    path = pathlib.Path(workdir) / FILE
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return [record for record in found if isinstance(record, dict)]
