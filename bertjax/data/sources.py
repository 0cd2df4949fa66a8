"""What inputs stand for: the files of globs, and datasets that are no files.

An input is a glob, `tfds:NAME:SPLIT`, or `python-docs`. Inputs are read in the order given, the
files of a glob in the order of their names, so that document numbers mean the same everywhere.
"""

import dataclasses
import glob
import os
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence

from bertjax.data import storage
from bertjax.errors import UserError

PYTHON_DOCS = "python-docs"
"""The input that stands for Python's own documentation."""


@dataclasses.dataclass(frozen=True)
class Source:
    """One file, or one input that is no file.

    Attributes:
      name: The file's path, `python-docs` or `tfds:NAME:SPLIT`.
      bytes: The file's size, 0 for what is no file.
      modified: When the file was last written, in nanoseconds.
    """

    name: str
    bytes: int = 0
    modified: int = 0


def find_sources(inputs: Sequence[str]) -> list[Source]:
    """Lists what the inputs stand for, each file once.

    Raises:
      UserError: there are no inputs, or one of them matches no file.
    """
    if not inputs:
        raise UserError("no input was given; give a glob of files, python-docs or tfds:NAME:SPLIT")
    found: dict[str, Source] = {}
    for key, name in _named(inputs):
        if key not in found:
            found[key] = Source(name, *([] if is_dataset(name) else _size_and_time(name)))
    return list(found.values())


def repeated(inputs: Sequence[str]) -> str | None:
    """A line about the files that inputs name more than once, if there are any."""
    counts = Counter(key for key, _ in _named(inputs))
    repeats = {key: count for key, count in counts.items() if count > 1}
    if not repeats:
        return None
    key, count = next(iter(repeats.items()))
    first = next(name for found, name in _named(inputs) if found == key)
    rest = f", and {len(repeats) - 1:,} other file(s) likewise" if len(repeats) > 1 else ""
    return f"note: the input names {first} {count} times{rest}; each file is read once"


def overlap(inputs: Sequence[Source], held_out: Sequence[Source]) -> list[str]:
    """The names of held-out sources that are also inputs."""
    known = {_key(source.name) for source in inputs}
    return [source.name for source in held_out if _key(source.name) in known]


def _named(inputs: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(what identifies a source, its name) of all that inputs name, repeats included."""
    for name in inputs:
        for path in [name] if is_dataset(name) else _files(name):
            yield _key(path), path


def is_dataset(name: str) -> bool:
    return name == PYTHON_DOCS or name.startswith("tfds:")


def _key(name: str) -> str:
    """The same for a relative and an absolute path of one file."""
    return name if is_dataset(name) or storage.is_remote(name) else os.path.abspath(name)


def _size_and_time(path: str) -> tuple[int, int]:
    if storage.is_remote(path):
        place = storage.place(path)
        size, version = storage.patiently(lambda: storage.listed(place), path)[""]
        return size, zlib.crc32(version.encode())
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def _files_in_bucket(pattern: str) -> list[str]:
    place = storage.place(pattern)
    if not glob.has_magic(place.name):
        matches = [place] if storage.patiently(place.exists, place) else []
    else:
        matches = storage.patiently(lambda: list(place.parent.glob(place.name)), place)
    files = sorted(str(path) for path in matches if not path.is_dir())
    if not files:
        raise UserError(
            f"no file matches {pattern!r}; only the last part of a bucket's path may have a *"
        )
    return files


def _files(pattern: str) -> list[str]:
    if storage.is_remote(pattern):
        return _files_in_bucket(pattern)
    pattern = os.path.expanduser(pattern)
    if os.path.isdir(pattern):
        raise UserError(f"{pattern} is a folder; give its files: {os.path.join(pattern, '*')!r}")
    matches = [pattern] if os.path.exists(pattern) else glob.glob(pattern, recursive=True)
    files = sorted(path for path in matches if not os.path.isdir(path))
    if not files:
        raise UserError(f"no file matches {pattern!r} in {os.getcwd()}; check the path or glob")
    return files
