"""The embedded corpus: English that lies on every machine which can run bertjax.

The topics of Python's own help, and the docstrings of the standard library and of the packages that
bertjax depends on: about 13 MB. Modules are parsed, never imported. A document is a topic, or the
docstrings of one module; one that has been seen is dropped. The order is that of the names.
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

from bertjax.data.workers import Workers, available_cores

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
