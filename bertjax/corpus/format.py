"""The interface of text formats: `corpus/formats/NAME.py` defines a `TextFormat` as `FORMAT`.

A format reads the documents of a file in their order with bounded memory, so that reading can be
repeated up to any document, from which `prepare` resumes.
"""

import contextlib
import dataclasses
import functools
import importlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from bertjax import catalog
from bertjax.corpus.documents import Document
from bertjax.errors import UserError
from bertjax.io.file_kinds import FileKind

FOLDER = "corpus/formats"
"""The folder of formats, for `catalog`."""

TEXT_FIELD = "text"
"""Default field or column that contains the text."""

_MAX_LISTED_FIELDS = 8
_MAX_SHOWN = 40
_PYTHON_LIST = re.compile(r"[\[{]+'.*[\]}]|[\[{].*'[\]}]+", re.DOTALL)
"""Lists and dicts as pandas writes them to CSV: their first or last text is in single quotes."""


@dataclasses.dataclass(frozen=True)
class ReadOptions:
    """Options of reading a file.

    Attributes:
      errors: `strict` to refuse invalid UTF-8, `replace` to replace it by U+FFFD.
      text_field: The field or column that contains the text, for formats that have fields.
    """

    errors: str = "strict"
    text_field: str = TEXT_FIELD


@dataclasses.dataclass(frozen=True)
class Table:
    """All columns of a file.

    Attributes:
      path: The file.
      columns: The values of each column, by name; None for a missing one.
      locations: The file and line of each row, for error messages.
      has_types: Whether the format distinguishes texts from numbers and lists; false for CSV and
        TSV, whose cells are all texts.
    """

    path: str
    columns: Mapping[str, list[Any]]
    locations: Sequence[str]
    has_types: bool = True

    def parse_column(self, name: str, *, strict: bool = False) -> list[Any]:
        """Return the values of a column that may have lists or objects.

        In formats without types, cells that are JSON lists or objects are parsed. Elsewhere a text
        in brackets is a text.

        Args:
          name: The column.
          strict: Whether lists and dicts in the syntax of Python are refused. They are texts else.

        Raises:
          UserError: A cell is a list in the syntax of Python, and `strict` is true.
        """
        cells = self.columns[name]
        if self.has_types:
            return list(cells)
        parsed = [_parse_cell(cell) for cell in cells]
        for cell, location in zip(parsed, self.locations, strict=True):
            if strict and isinstance(cell, str) and _PYTHON_LIST.fullmatch(cell.strip()):
                raise UserError(
                    f"{location}: column {name!r}: got {cell[:_MAX_SHOWN]}, which looks like a "
                    'Python list, expected JSON such as ["a", "b"]; write it with json.dumps'
                )
        return parsed


def _parse_cell(cell: str) -> Any:
    text = cell.strip()
    if text.startswith(('"[', '"{')) and text.endswith('"'):
        text = text[1:-1].replace('""', '"')  # quotes of CSV, which are literal in TSV
    if text[:1] in ("[", "{"):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(text)
    return cell


@dataclasses.dataclass(frozen=True)
class TextFormat:
    """A format of files with text.

    Attributes:
      read: Yields all documents of a file, also empty ones, so that they can be counted.
      kinds: The file formats, detected by content or name, that `read` reads.
      has_fields: Whether `ReadOptions.text_field` selects the text.
      starts: Whether a file has this format, by its name and its first line that is not blank, for
        formats that are plain text.
      list_files: Returns the files of a folder that some program wrote as one dataset, in order;
        None for a folder of another program.
      read_table: Reads all columns of a file, for tasks; None if the format has no columns.
    """

    read: Callable[[str, ReadOptions], Iterator[Document]]
    kinds: tuple[FileKind, ...] = ()
    has_fields: bool = False
    starts: Callable[[str, bytes], bool] = lambda path, line: False
    list_files: Callable[[str], list[str] | None] = lambda folder: None
    read_table: Callable[[str], Table] | None = None


@functools.cache
def all_formats() -> Mapping[str, TextFormat]:
    """Return all formats by name."""
    return {name: catalog.load(FOLDER, name).FORMAT for name in catalog.names(FOLDER)}


def import_extra(path: str, module: str, extra: str) -> ModuleType:
    """Import a module that only one format needs.

    Args:
      path: The file to be read, for the error message.
      module: The module.
      extra: The extra of bertjax that installs it.

    Raises:
      UserError: The module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"{path}: {error}; pip install 'bertjax[{extra}]'") from None


def missing_field(
    where: str, noun: str, field: str, strings: Sequence[str], *, exists: bool
) -> UserError:
    """Return the error for a field or column of text that is missing or not a string.

    Args:
      where: The file, or the line.
      noun: "field" or "column".
      field: The name that was looked for.
      strings: Names of the fields that are strings.
      exists: Whether there is a field of this name, which is not a string.
    """
    problem = "is not a string" if exists else "is missing"
    names = [json.dumps(name, ensure_ascii=False) for name in strings[:_MAX_LISTED_FIELDS]]
    more = f" and {len(strings) - len(names)} more" if len(strings) > len(names) else ""
    remedy = (
        f"string {noun}s: {', '.join(names)}{more}; choose one with --text_field NAME (in a "
        "config: data.text_field)"
        if strings
        else f"no {noun} is a string"
    )
    return UserError(
        f"{where}: the {noun} {json.dumps(field, ensure_ascii=False)} {problem}; {remedy}"
    )
