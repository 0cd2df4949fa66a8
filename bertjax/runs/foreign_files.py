"""Refuse a workdir that contains inputs, a corpus, a tokenizer or other files of the user.

Logs, scripts and notes, which schedulers and users put into a workdir before a run starts, are
allowed; `bertjax prepare` and `bertjax tokenizer` require an empty folder.
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
"""Files that runs and sweeps write into their workdir."""

_ALLOWED = (
    *(".*", "*.log", "*log*.txt", "*.out", "*.err", "stdout*", "stderr*", "nohup*", "slurm-*"),
    *("*.[oe][0-9]*", "core*", "*.pid"),  # PBS and Grid Engine, crashes, daemons
    *("*.sh", "*.sbatch", "*.slurm", "*.py", "*.yaml", "*.yml", "*.toml", "*.md"),
)
"""Hidden files, logs, scripts, configs and notes."""

_SHOWN = 3


def refuse(folder: pathlib.Path, config: Mapping[str, Any]) -> None:
    """Raises if a new workdir contains inputs, a corpus, a tokenizer or other files.

    Subfolders and empty files, such as those of a shell's redirection, are allowed.

    Args:
      folder: A workdir without a run; may be absent.
      config: Of the run.

    Raises:
      UserError: naming the files.
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
    """Local files of the config's raw text."""
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
    """The kind of artefact that a folder is, "corpus" or "tokenizer", or None."""
    if (folder / METADATA).is_file():
        return "tokenizer"
    finished = (folder / "manifest.json").is_file() and (folder / "tokenizer" / METADATA).is_file()
    return "corpus" if finished or (folder / UNFINISHED / "progress.json").is_file() else None


def _is_foreign(path: pathlib.Path) -> bool:
    if path.is_dir() or path.name in _OWN or path.stat().st_size == 0:
        return False
    return not any(fnmatch.fnmatchcase(path.name, pattern) for pattern in _ALLOWED)
