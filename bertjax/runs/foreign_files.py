"""Refuse a workdir that contains files of anything but a run.

`bertjax prepare` and `bertjax tokenizer` refuse every folder that holds something else. A run's may
hold what schedulers and users put there before it starts: logs, scripts and notes.
"""

import fnmatch
import glob
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from bertjax.corpus.reader import UNFINISHED
from bertjax.errors import UserError
from bertjax.io import storage
from bertjax.tokenizers.folder import METADATA

_OWN = (
    *("config.json", "metrics.jsonl", "summary.json", "results.json", "result.json"),
    *("failure.json", "table.md", "submission.zip"),
)
"""Files that runs, suites and sweeps write into their folder."""

_ALLOWED = (
    *(".*", "*.log", "*log*.txt", "*.out", "*.err", "stdout*", "stderr*", "nohup*", "slurm-*"),
    *("*.[oe][0-9]*", "core*", "*.pid"),  # those of PBS and Grid Engine, of crashes, of daemons
    *("*.sh", "*.sbatch", "*.slurm", "*.py", "*.yaml", "*.yml", "*.toml", "*.md"),
)
"""Hidden files, logs, scripts, configs and notes."""

_SHOWN = 3


def refuse(folder: pathlib.Path, config: Mapping[str, Any]) -> None:
    """Refuses a folder that holds inputs, a corpus, a tokenizer or other files that no run wrote.

    Folders in it do not count, nor do empty files, to which a shell sends its output.

    Args:
      folder: The folder, which no run has claimed yet; it may be absent.
      config: The run's.

    Raises:
      UserError: it names the files.
    """
    advice = "choose a new or an empty --workdir"
    real = pathlib.Path(os.path.realpath(folder))
    for path in _inputs(config):
        if real in path.parents:
            raise UserError(f"{folder} holds {path}, an input of this run; {advice}")
    for outer in (real, *real.parents):
        if (kind := _artefact(outer)) is not None:
            place = "is" if outer == real else f"lies in {outer}, which is"
            raise UserError(f"{folder} {place} the folder of a {kind}; {advice}")
    if not real.is_dir():
        return
    foreign = sorted(path.name for path in real.iterdir() if _is_foreign(path))
    if foreign:
        rest = len(foreign) - _SHOWN
        names = ", ".join(foreign[:_SHOWN]) + (f" and {rest:,} more" if rest > 0 else "")
        raise UserError(
            f"{folder} holds files that no run wrote: {names}; {advice} (logs, scripts, hidden "
            "files and folders may be there)"
        )


def _inputs(config: Mapping[str, Any]) -> Iterator[pathlib.Path]:
    """The files of a config's raw text that lie on a disk."""
    data = config.get("data")
    if not isinstance(data, Mapping):
        return
    for name in (*data.get("input", ()), *data.get("validation_input", ())):
        if not storage.is_remote(name):
            pattern = os.path.expanduser(name)
            for path in {pattern, *glob.glob(pattern, recursive=True)}:
                if os.path.exists(path):
                    yield pathlib.Path(os.path.realpath(path))


def _artefact(folder: pathlib.Path) -> str | None:
    """What `bertjax prepare` or `bertjax tokenizer` made of a folder."""
    if (folder / METADATA).is_file():
        return "tokenizer"
    finished = (folder / "manifest.json").is_file() and (folder / "tokenizer" / METADATA).is_file()
    return "corpus" if finished or (folder / UNFINISHED / "progress.json").is_file() else None


def _is_foreign(path: pathlib.Path) -> bool:
    if path.is_dir() or path.name in _OWN or path.stat().st_size == 0:
        return False
    return not any(fnmatch.fnmatchcase(path.name, pattern) for pattern in _ALLOWED)
