"""Read the documentation of Python and installed packages: the built-in default corpus.

`python-docs` is English text that every installation has, without a download: the topics of
Python's help and the docstrings of the standard library and of bertjax's dependencies, about 13 MB.
A document is one topic, or the docstrings of one module, in the order of names; duplicates are
dropped. Modules are parsed, never imported.
"""

import ast
import functools
import gc
import importlib.util
import pathlib
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterator

from bertjax.corpus.workers import WorkerPool, available_cores

PACKAGES = (
    "absl array_record etils flax jax jaxlib jaxtyping ml_collections numpy optax orbax rich scipy"
)
"""Packages whose docstrings are read after the standard library's, if they are installed."""

_EXCLUDED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "testing", "__pycache__"}
_MODULES_PER_BLOCK = 32
_MAX_WORKERS = 8

_CODE = re.compile(r">>>|\.\.\.( |$)|[|+]")
_LIST_ITEM = re.compile(r"([-*\u2022]|\d{1,2}[.)]|:\w+[^:]*:|\.\.|\*{0,2}[\w.]+( \([^)]*\))?:) ")


@functools.cache
def read_documents() -> tuple[str, ...]:
    """Read all documents; takes a few seconds on all cores, once per process."""
    modules = _list_modules()
    blocks = [
        (None, modules[start : start + _MODULES_PER_BLOCK])
        for start in range(0, len(modules), _MODULES_PER_BLOCK)
    ]
    documents = [[topic] for topic in _topics()]
    with WorkerPool(make_extractor, (), min(available_cores(), _MAX_WORKERS)) as pool:
        for _, block in pool.imap(blocks):
            documents += block
    return tuple(_drop_duplicates(documents))


def make_extractor() -> Callable[[list[str]], list[list[str]]]:
    """Create the function of a worker: paths of modules -> the docstrings of each."""
    warnings.simplefilter("ignore")  # invalid escape sequences in third-party modules
    gc.disable()  # syntax trees have no cycles and make up most of the objects: collecting is slow
    return lambda paths: [_read_docstrings(pathlib.Path(path)) for path in paths]


def _drop_duplicates(modules: list[list[str]]) -> Iterator[str]:
    seen: set[str] = set()
    for docstrings in modules:
        new = [text for text in dict.fromkeys(docstrings) if text not in seen]
        seen.update(new)
        if new:
            yield "\n".join(new)


def unwrap(docstring: str) -> str:
    """Join the lines of each paragraph and list item of a docstring; drop lines without letters."""
    lines: list[str] = []
    indent, is_item, is_open = 0, False, False
    for line in docstring.expandtabs().splitlines():
        text = line.strip()
        if not any(map(str.isalnum, text)):
            is_open = False
            continue
        depth = len(line) - len(line.lstrip())
        starts_item = _LIST_ITEM.match(text) is not None
        is_code = _CODE.match(text) is not None
        continues = depth > indent if is_item else depth == indent
        if is_open and continues and not starts_item and not is_code:
            lines[-1] += " " + text
        else:
            lines.append(text)
            indent, is_item, is_open = depth, starts_item, not is_code
    return "\n".join(lines)


def _topics() -> Iterator[str]:
    try:
        from pydoc_data.topics import topics
    except ImportError:  # some Linux distributions omit this module
        return
    for _, text in sorted(topics.items()):
        yield unwrap(text)


def _list_modules() -> list[str]:
    roots = [pathlib.Path(sysconfig.get_path("stdlib"))]
    for package in PACKAGES.split():
        spec = importlib.util.find_spec(package)
        if spec is not None:
            roots += sorted(map(pathlib.Path, spec.submodule_search_locations or []))
    modules: list[str] = []
    for root in roots:
        paths = (path.relative_to(root) for path in root.rglob("*.py"))
        kept = [path for path in paths if not _EXCLUDED_FOLDERS.intersection(path.parts)]
        modules += [str(root / path) for path in sorted(kept)]
    return modules


def _read_docstrings(path: pathlib.Path) -> list[str]:
    try:
        module = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError, RecursionError):
        return []
    docstrings: list[str] = []
    _collect_docstrings(module, docstrings)
    return docstrings


def _collect_docstrings(
    node: ast.Module | ast.ClassDef | ast.FunctionDef, docstrings: list[str]
) -> None:
    docstring = ast.get_docstring(node)
    if docstring:
        docstrings.append(unwrap(docstring))
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            _collect_docstrings(inner, docstrings)
