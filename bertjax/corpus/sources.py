"""Resolve the inputs of a corpus: globs of files, TensorFlow datasets, Python's documentation.

An input is a glob, the folder of a dataset, `tfds:NAME:SPLIT`, or `python-docs`. Inputs are read in
the given order and the files of a glob in the order of their names, so that document numbers are
reproducible.
"""

import dataclasses
import glob
import os
from collections import Counter
from collections.abc import Iterator, Sequence

from bertjax.corpus.format import all_formats
from bertjax.errors import UserError
from bertjax.io import storage
from bertjax.io.inputs import find_urls, size_and_version

PYTHON_DOCS = "python-docs"
"""The name of the built-in corpus of Python's documentation (`corpus/python_docs.py`)."""


@dataclasses.dataclass(frozen=True)
class Source:
    """A file, a TensorFlow dataset or `python-docs`.

    Attributes:
      name: The file's path, `python-docs` or `tfds:NAME:SPLIT`.
      bytes: Size of the file; 0 if the source is not a file.
      modified: Modification time of the file in nanoseconds; 0 if the source is not a file.
    """

    name: str
    bytes: int = 0
    modified: int = 0


def find_sources(inputs: Sequence[str]) -> list[Source]:
    """List the sources that match the inputs, each file once.

    Raises:
      UserError: There are no inputs, or one of them matches no file.
    """
    if not inputs:
        raise UserError("no input: expected a glob of files, python-docs or tfds:NAME:SPLIT")
    sources: dict[str, Source] = {}
    for key, name in _expand(inputs):
        if key not in sources:
            sources[key] = Source(name, *([] if is_dataset(name) else _size_and_time(name)))
    return list(sources.values())


def describe_repeated(inputs: Sequence[str]) -> str | None:
    """Return a note about files that match several inputs; None if there are none."""
    counts = Counter(key for key, _ in _expand(inputs))
    repeats = {key: count for key, count in counts.items() if count > 1}
    if not repeats:
        return None
    key, count = next(iter(repeats.items()))
    first = next(name for other, name in _expand(inputs) if other == key)
    rest = f", and {len(repeats) - 1:,} other file(s) more than once" if len(repeats) > 1 else ""
    return f"note: the inputs match {first} {count} times{rest}; each file is read once"


def find_overlap(inputs: Sequence[Source], held_out: Sequence[Source]) -> list[str]:
    """List the names of held-out sources that are also inputs."""
    known = {_key(source.name) for source in inputs}
    return [source.name for source in held_out if _key(source.name) in known]


def _expand(inputs: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (key, name) of all matching sources, including repeated ones, which have equal keys."""
    for name in inputs:
        for path in [name] if is_dataset(name) else _files(name):
            yield _key(path), path


def is_dataset(name: str) -> bool:
    """Whether a source is `python-docs` or a TensorFlow dataset, rather than a file."""
    return name == PYTHON_DOCS or name.startswith("tfds:")


def _key(name: str) -> str:
    """Identify a source; equal for a relative and an absolute path of the same file."""
    return name if is_dataset(name) or storage.is_remote(name) else os.path.abspath(name)


def _size_and_time(path: str) -> tuple[int, int]:
    if storage.is_remote(path):
        return size_and_version(path)
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def _files(pattern: str) -> list[str]:
    if storage.is_remote(pattern):
        if files := find_urls(pattern):
            return files
        private = ", and log in if the dataset is private" if pattern.startswith("hf:") else ""
        raise UserError(f"no file matches {pattern!r}; check the path or glob{private}")
    pattern = os.path.expanduser(pattern)
    if os.path.isdir(pattern):
        return _files_of_folder(pattern)
    matches = [pattern] if os.path.exists(pattern) else glob.glob(pattern, recursive=True)
    files = sorted(path for path in matches if not os.path.isdir(path))
    if not files:
        raise UserError(f"no file matches {pattern!r} in {os.getcwd()}; check the path or glob")
    return files


def _files_of_folder(folder: str) -> list[str]:
    """List the files of a dataset that a program wrote as a folder."""
    for file_format in all_formats().values():
        if files := file_format.list_files(folder):
            return files
    raise UserError(
        f"{folder}: got a folder, expected files, or a folder written by save_to_disk of datasets "
        f"or as MDS; give {os.path.join(folder, '*')!r}"
    )
