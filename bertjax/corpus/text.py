"""Read documents from all inputs of a corpus: text files, TensorFlow datasets, python-docs.

The layout of a file is detected from its name and its first bytes; formats that are not text are
refused before anything is written.
"""

import re
from collections.abc import Iterator, Sequence

from bertjax.corpus.layouts import (
    FORMAT,
    JSON_LINES,
    LAYOUTS,
    TEXT_FIELD,
    Document,
    decode,
    read_json_lines,
    split_long,
    starts_wikiextractor,
)
from bertjax.corpus.sources import PYTHON_DOCS, Source, find_sources, is_dataset
from bertjax.errors import UserError, nearest
from bertjax.io import file_kinds, storage
from bertjax.io.file_kinds import FileKind
from bertjax.io.lines import read_head


def read_documents(
    inputs: Sequence[str],
    *,
    format: str = "auto",
    errors: str = "strict",
    tfds_data_dir: str | None = None,
    text_field: str = "",
) -> Iterator[str]:
    """Yield the text of every document of the inputs that is not empty.

    Args:
      inputs: Globs, `python-docs`, `tfds:NAME:SPLIT`.
      format: The layout of files, one of `list_formats()`; `auto` detects it for each file.
      errors: `strict` to refuse invalid UTF-8, `replace` to replace it by U+FFFD.
      tfds_data_dir: The folder of prepared TensorFlow datasets.
      text_field: The field of JSON lines, or the feature of a dataset, that contains the text; ""
        for `text`.

    Raises:
      UserError: An input is missing, damaged, not UTF-8, not in the given layout or not text, or
        all documents are empty.
    """
    any_text = False
    sources = find_sources(inputs)
    check_sources(sources, format=format, text_field=text_field)
    options = {"errors": errors, "tfds_data_dir": tfds_data_dir, "text_field": text_field}
    for source in sources:
        for document in read_source(source, format=format, **options):
            if document.text:
                any_text = True
                yield document.text
    if not any_text:
        raise UserError(no_text_message(inputs))


def no_text_message(inputs: Sequence[str]) -> str:
    """Format the error for inputs that exist but have only empty documents."""
    return f"no text in {', '.join(inputs)}: every document is empty; give --input files with text"


def list_formats() -> list[str]:
    """List the values of `format`."""
    return ["auto", *LAYOUTS]


def read_source(
    source: Source,
    *,
    format: str = "auto",
    errors: str = "strict",
    tfds_data_dir: str | None = None,
    text_field: str = "",
) -> Iterator[Document]:
    """Yield all documents of a source in order, including empty ones, so that they can be counted.

    See `read_documents` for the arguments and errors.
    """
    _check_format(format)
    if source.name == PYTHON_DOCS:
        if format == FORMAT:
            raise UserError(
                f"{PYTHON_DOCS}: got text, expected pairs; give files of pairs, or tfds:NAME:SPLIT"
            )
        from bertjax.corpus import python_docs

        yield from map(Document, python_docs.read_documents())
    elif source.name.startswith("tfds:"):
        yield from split_long(_read_tfds(source.name, format, errors, tfds_data_dir, text_field))
    else:
        layout = _detect_layout(source.name, format)
        if layout == JSON_LINES:
            documents = read_json_lines(source.name, errors, text_field or TEXT_FIELD)
        else:
            documents = LAYOUTS[layout](source.name, errors)
        yield from split_long(documents)


def _read_tfds(
    name: str, format: str, errors: str, data_dir: str | None, text_field: str
) -> Iterator[Document]:
    from bertjax.corpus import tfds_text

    if format == FORMAT:
        texts = tfds_text.read_pairs(name, data_dir=data_dir)
    else:
        texts = tfds_text.read_texts(name, data_dir=data_dir, feature=text_field)
    for number, raw in enumerate(texts):
        yield decode(f"{name} #{number}", 0, raw, errors)


def check_sources(sources: Sequence[Source], *, format: str = "auto", text_field: str = "") -> None:
    """Check the formats of all sources before any is read.

    Files in buckets are checked by their names here, and by their content when they are read.

    Raises:
      UserError: A file is not text, or `format` or `text_field` has no effect on any source.
    """
    _check_format(format)
    has_fields = False
    for source in sources:
        if is_dataset(source.name):
            has_fields = has_fields or source.name != PYTHON_DOCS
        elif storage.is_remote(source.name):
            has_fields = True
            _check_kind(source.name, file_kinds.detect_by_name(source.name), format)
        else:
            has_fields = _detect_layout(source.name, format) == JSON_LINES or has_fields
    if format not in ("auto", FORMAT) and all(is_dataset(source.name) for source in sources):
        raise UserError(
            f"format {format!r} has no effect: got {', '.join(source.name for source in sources)}, "
            "expected files; leave --format out (in a config: data.text_format)"
        )
    if text_field and (format == FORMAT or not has_fields):
        raise UserError(
            f"text_field={text_field!r}: no input has named fields, expected JSON lines or "
            "tfds:NAME:SPLIT; leave --text_field out"
        )


def _check_format(format: str) -> None:
    if format not in list_formats():
        raise UserError(f"unknown format {format!r}: {nearest(format, list_formats())}")


def _detect_layout(path: str, format: str) -> str:
    """Return the layout of a file: `format`, or detected from name and first bytes for `auto`.

    Raises:
      UserError: The file is not text.
    """
    head = read_head(path)
    _check_kind(path, file_kinds.detect_by_content(path, head), format)
    if format != "auto":
        return format
    first = next((line for line in head.split(b"\n") if line.strip()), b"")
    if starts_wikiextractor(first):
        return "wikiextractor"
    if first.lstrip()[:1] == b"[" and _has_json_name(path):
        _check_kind(path, file_kinds.JSON_ARRAY, format)
    if _has_json_name(path) or re.match(rb'\s*\{\s*"[^"]*"\s*:', first):
        return JSON_LINES
    _check_kind(path, file_kinds.detect_by_name(path) or file_kinds.detect_table(head), format)
    if b"\0" in head:
        _check_kind(path, file_kinds.NUL_BYTES, format)
    return "text"


def _has_json_name(path: str) -> bool:
    return file_kinds.detect_by_name(path) is file_kinds.JSON_LINES


def _check_kind(path: str, kind: FileKind | None, format: str) -> None:
    """Refuse a file that is not text; a format other than `auto` allows all but binary kinds."""
    if kind is None or kind is file_kinds.JSON_LINES or (format != "auto" and not kind.is_binary):
        return
    or_format = "" if kind.is_binary else "; or --format text (in a config: data.text_format)"
    raise UserError(
        f"{path} is {kind.name}, expected text: {file_kinds.remedy(kind, path)}{or_format}"
    )
