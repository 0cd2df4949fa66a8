"""Resolve the inputs of a corpus: globs, prepared TensorFlow datasets, Python's documentation.

An input is a glob, `tfds:NAME:SPLIT`, or `python-docs`. Inputs are read in the order given and the
files of a glob in the order of their names, so that document numbers are reproducible.

`python-docs` is English text on every machine that runs bertjax: the topics of Python's help, and
the docstrings of the standard library and of bertjax's dependencies, about 13 MB. Modules are
parsed, never imported. A document is one topic or the docstrings of one module, in the order of
names; duplicates are dropped.

TensorFlow datasets are found by their files and read without TensorFlow, never by their code. They
must be prepared with `file_format="array_record"`.
"""

import ast
import dataclasses
import functools
import gc
import glob
import importlib.util
import os
import pathlib
import re
import sysconfig
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bertjax.corpus.workers import Workers, available_cores
from bertjax.errors import UserError, nearest
from bertjax.io import storage

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
        place = storage.to_path(path)
        size, version = storage.with_retries(lambda: storage.list_files(place), path)[""]
        return size, zlib.crc32(version.encode())
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def _files_in_bucket(pattern: str) -> list[str]:
    place = storage.to_path(pattern)
    if not glob.has_magic(place.name):
        matches = [place] if storage.with_retries(place.exists, place) else []
    else:
        matches = storage.with_retries(lambda: list(place.parent.glob(place.name)), place)
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


PACKAGES = (
    "absl array_record etils flax jax jaxlib jaxtyping ml_collections numpy optax orbax rich scipy"
)
"""Whose docstrings are taken, after the standard library's; what is not installed is left out."""

_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "testing", "__pycache__"}
_MODULES_AT_ONCE = 32
_MOST_WORKERS = 8

_CODE = re.compile(r">>>|\.\.\.( |$)|[|+]")
_LIST_ITEM = re.compile(r"([-*\u2022]|\d{1,2}[.)]|:\w+[^:]*:|\.\.|\*{0,2}[\w.]+( \([^)]*\))?:) ")


@functools.cache
def documents() -> tuple[str, ...]:
    """All documents: a few seconds of parsing on all cores, once in a process."""
    modules = _modules()
    blocks = [
        (None, modules[start : start + _MODULES_AT_ONCE])
        for start in range(0, len(modules), _MODULES_AT_ONCE)
    ]
    found = [[topic] for topic in _topics()]
    with Workers(make_extractor, (), min(available_cores(), _MOST_WORKERS)) as pool:
        for _, block in pool.ordered(blocks):
            found += block
    return tuple(_without_duplicates(found))


def make_extractor() -> Callable[[list[str]], list[list[str]]]:
    """Makes what a worker calls: paths of modules to the docstrings of each."""
    warnings.simplefilter("ignore")  # other people's escape sequences
    gc.disable()  # syntax trees have no cycles, and are most of what there is to collect
    return lambda paths: [_docstrings(pathlib.Path(path)) for path in paths]


def _without_duplicates(modules: list[list[str]]) -> Iterator[str]:
    seen: set[str] = set()
    for docstrings in modules:
        new = [text for text in dict.fromkeys(docstrings) if text not in seen]
        seen.update(new)
        if new:
            yield "\n".join(new)


def unwrapped(docstring: str) -> str:
    """Puts each paragraph and each list item of a docstring on one line; drops ruled lines."""
    lines: list[str] = []
    indent, is_item, is_open = 0, False, False
    for line in docstring.expandtabs().splitlines():
        text = line.strip()
        if not any(map(str.isalnum, text)):
            is_open = False
            continue
        depth = len(line) - len(line.lstrip())
        begins_item = _LIST_ITEM.match(text) is not None
        is_code = _CODE.match(text) is not None
        goes_on = depth > indent if is_item else depth == indent
        if is_open and goes_on and not begins_item and not is_code:
            lines[-1] += " " + text
        else:
            lines.append(text)
            indent, is_item, is_open = depth, begins_item, not is_code
    return "\n".join(lines)


def _topics() -> Iterator[str]:
    try:
        from pydoc_data.topics import topics
    except ImportError:  # some distributions part Python
        return
    for _, text in sorted(topics.items()):
        yield unwrapped(text)


def _modules() -> list[str]:
    roots = [pathlib.Path(sysconfig.get_path("stdlib"))]
    for package in PACKAGES.split():
        spec = importlib.util.find_spec(package)
        if spec is not None:
            roots += sorted(map(pathlib.Path, spec.submodule_search_locations or []))
    found: list[str] = []
    for root in roots:
        paths = (path.relative_to(root) for path in root.rglob("*.py"))
        kept = [path for path in paths if not _LEFT_OUT.intersection(path.parts)]
        found += [str(root / path) for path in sorted(kept)]
    return found


def _docstrings(path: pathlib.Path) -> list[str]:
    try:
        module = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError, RecursionError):
        return []
    found: list[str] = []
    _visit(module, found)
    return found


def _visit(node: ast.Module | ast.ClassDef | ast.FunctionDef, found: list[str]) -> None:
    docstring = ast.get_docstring(node)
    if docstring:
        found.append(unwrapped(docstring))
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            _visit(inner, found)


_BATCH = 256


def texts(source: str, *, data_dir: str | None = None, feature: str = "") -> Iterator[bytes]:
    """Yields the text of each example of `tfds:NAME:SPLIT`.

    NAME may have a config and a version (`wikipedia/20220620.en:1.0.0`), SPLIT may be a slice
    (`train[:10%]`). The text is the feature `text`; where there is none it is all string features,
    in the order of their names, each on a line of its own.

    Args:
      source: What the user wrote.
      data_dir: Where datasets lie prepared; `~/tensorflow_datasets` unless told.
      feature: The string feature that holds the text, instead of these.

    Raises:
      UserError: the name cannot be read, or there is no such dataset, split or text.
    """
    builder, split = _open(source, data_dir)
    keys = _text_features(source, builder.info.features, feature)
    for example in _in_batches(_examples(source, builder, split)):
        yield b"\n".join(example[key] for key in keys)


def pairs(source: str, *, data_dir: str | None = None) -> Iterator[bytes]:
    """Yields source and target of each example of `tfds:NAME:SPLIT`, as `texts` yields text.

    They are what the dataset is supervised with, in this order, or its two string features.

    Raises:
      UserError: there is no such dataset or split, or it has no pairs.
    """
    builder, split = _open(source, data_dir)
    strings = _string_features(builder.info.features)
    keys = builder.info.supervised_keys or strings
    if len(keys) != 2 or not set(keys) <= set(strings):
        raise UserError(
            f"{source} has no pairs: expected two string features, it has {', '.join(strings)}"
        )
    for example in _in_batches(_examples(source, builder, split)):
        yield b"\n".join(b" ".join(example[key].splitlines()) for key in keys)


def _open(source: str, data_dir: str | None) -> tuple[Any, str]:
    """The dataset that `tfds:NAME:SPLIT` names, and the split."""
    parts = re.fullmatch(r"tfds:([\w./-]+(?::[\d.*]+)?):(.+)", source)
    if not parts:
        raise UserError(f"{source!r} is not tfds:NAME:SPLIT; write, for example, tfds:lm1b:train")
    name, split = parts.groups()
    return _builder(source, name, data_dir), split


def _in_batches(examples: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """All examples, read some at a time."""
    for start in range(0, len(examples), _BATCH):
        numbers = list(range(start, min(start + _BATCH, len(examples))))
        yield from examples.__getitems__(numbers)


def _builder(source: str, name: str, data_dir: str | None) -> Any:
    try:
        from tensorflow_datasets.core import read_only_builder
    except ImportError as error:
        raise UserError(
            f"{source} needs the package tensorflow-datasets ({error}); pip install it"
        ) from None
    try:
        return read_only_builder.builder_from_files(name, data_dir=data_dir)
    except Exception as error:  # TFDS raises many kinds, each over many lines
        where = data_dir or "~/tensorflow_datasets"
        raise UserError(
            f"no prepared dataset {name!r} in {where} ({str(error).splitlines()[0]}); "
            "give its folder with --tfds_data_dir, and its config as NAME/CONFIG"
        ) from error


def _examples(source: str, builder: Any, split: str) -> Sequence[dict[str, Any]]:
    known = list(builder.info.splits)
    if split.partition("[")[0] not in [*known, "all"]:
        raise UserError(f"{source} has no split {split!r}: {nearest(split, known)}")
    try:
        return builder.as_data_source(split)
    except NotImplementedError:
        raise UserError(
            f"{source} is stored as {builder.info.file_format.value}; prepare it again with "
            'file_format="array_record", which is read without TensorFlow'
        ) from None
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{source} cannot be read: {reason}; check the split {split!r}") from error


def _text_features(source: str, features: Any, feature: str) -> list[str]:
    strings = _string_features(features)
    if not strings:
        raise UserError(f"{source} has no text: its features are {', '.join(sorted(features))}")
    if feature and feature not in strings:
        raise UserError(
            f"{source} has no string feature {feature!r}, it has {', '.join(strings)}; choose one "
            "with --text_field (in a config: data.text_field)"
        )
    if feature:
        return [feature]
    return ["text"] if "text" in strings else strings


def _string_features(features: Any) -> list[str]:
    return sorted(key for key, feature in features.items() if type(feature).__name__ == "Text")
