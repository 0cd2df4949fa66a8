"""Read documents from all inputs of a corpus: files, TensorFlow datasets, python-docs.

The format of a file is detected from its first bytes and its name; files without text are refused
before anything is written.
"""

from collections.abc import Iterator, Sequence

from bertjax import catalog
from bertjax.corpus.documents import PAIR_FORMAT, Document, decode, split_long
from bertjax.corpus.format import FOLDER, TEXT_FIELD, ReadOptions, TextFormat, all_formats
from bertjax.corpus.sources import PYTHON_DOCS, Source, find_sources, is_dataset
from bertjax.errors import UserError, nearest
from bertjax.io import file_kinds, storage
from bertjax.io.file_kinds import FileKind
from bertjax.io.lines import read_head, read_text_lines


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
      inputs: Globs, folders of datasets, `python-docs`, `tfds:NAME:SPLIT`.
      format: The format of files, one of `list_formats()`; `auto` detects it for each file.
      errors: `strict` to refuse invalid UTF-8, `replace` to replace it by U+FFFD.
      tfds_data_dir: The folder of prepared TensorFlow datasets.
      text_field: The field of JSON lines, the column of a table, or the feature of a dataset that
        contains the text; "" for `text`.

    Raises:
      UserError: An input is missing, damaged, not UTF-8, not in the given format or without text,
        or all documents are empty.
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
    return ["auto", *catalog.names(FOLDER)]


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
        if format == PAIR_FORMAT:
            raise UserError(
                f"{PYTHON_DOCS}: got text, expected pairs; give files of pairs, or tfds:NAME:SPLIT"
            )
        from bertjax.corpus import python_docs

        yield from map(Document, python_docs.read_documents())
    elif source.name.startswith("tfds:"):
        yield from split_long(_read_tfds(source.name, format, errors, tfds_data_dir, text_field))
    else:
        file_format = all_formats()[detect_format(source.name, format)]
        options = ReadOptions(errors, text_field or TEXT_FIELD)
        yield from split_long(file_format.read(source.name, options))


def _read_tfds(
    name: str, format: str, errors: str, data_dir: str | None, text_field: str
) -> Iterator[Document]:
    from bertjax.corpus import tfds_text

    if format == PAIR_FORMAT:
        texts = tfds_text.read_pairs(name, data_dir=data_dir)
    else:
        texts = tfds_text.read_texts(name, data_dir=data_dir, feature=text_field)
    for number, raw in enumerate(texts):
        yield decode(f"{name} #{number}", 0, raw, errors)


def check_sources(sources: Sequence[Source], *, format: str = "auto", text_field: str = "") -> None:
    """Check the formats of all sources and their fields of text, before any is read.

    Files in buckets are checked by their names here, and by their content when they are read.

    Raises:
      UserError: A file has no text, or `format` or `text_field` has no effect on any source.
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
            name = detect_format(source.name, format)
            if all_formats()[name].has_fields:
                has_fields = True
                next(
                    read_source(source, format=name, text_field=text_field, errors="replace"), None
                )
    if format not in ("auto", PAIR_FORMAT) and all(is_dataset(source.name) for source in sources):
        raise UserError(
            f"format {format!r} has no effect: got {', '.join(source.name for source in sources)}, "
            "expected files; leave --format out (in a config: data.text_format)"
        )
    if text_field and (format == PAIR_FORMAT or not has_fields):
        raise UserError(
            f"text_field={text_field!r}: no input has named fields, expected JSON lines, a table "
            "or tfds:NAME:SPLIT; leave --text_field out"
        )


def _check_format(format: str) -> None:
    if format not in list_formats():
        raise UserError(f"unknown format {format!r}: {nearest(format, list_formats())}")


def detect_format(path: str, format: str = "auto", *, is_table: bool = False) -> str:
    """Return the format of a file: `format`, or detected from first bytes and name for `auto`.

    Args:
      path: The file.
      format: The format.
      is_table: Whether the caller reads tables only, for the error message.

    Raises:
      UserError: The file has no text that is read.
    """
    head = read_head(path)
    kind = file_kinds.detect_by_content(path, head)
    if format != "auto":
        _check_kind(path, kind, format)
        return format
    if kind is None:
        first = next((line for line in head.split(b"\n") if line.strip()), b"")
        kind = _detect_json_array(path, head)
        for name, file_format in all_formats().items():
            if kind is None and file_format.starts(path, first):
                return name
    kind = kind or file_kinds.detect_by_name(path) or file_kinds.detect_table(head)
    if kind is None and b"\0" in head:
        kind = file_kinds.NUL_BYTES
    return _check_kind(path, kind, format, is_table) or "text"


def check_no_array(path: str) -> None:
    """Raises `UserError` if a file of JSON lines, by its name, is one JSON array."""
    if kind := _detect_json_array(path, read_head(path)):
        _check_kind(path, kind, "auto", is_table=True)


def table_format(path: str) -> TextFormat | None:
    """Return the format of a file with named fields or columns; None for other files.

    Text is never taken for a table by the number of its commas or tabs alone.
    """
    kind = file_kinds.detect_by_content(path, read_head(path)) or file_kinds.detect_by_name(path)
    found = (each for each in all_formats().values() if kind in each.kinds and each.has_fields)
    return next(found, None)


def read_texts(path: str, text_field: str = "") -> Iterator[str]:
    """Yield the text of each line of a file, or of each row of one with named fields.

    Empty texts are yielded too.

    Args:
      path: The file, whose format is detected at once.
      text_field: The field or column with the text; "" for `text`.

    Raises:
      UserError: The file is neither text nor a table, or is damaged; it has no such field; or
        `text_field` has no effect on it.
    """
    file_format = table_format(path)
    if file_format is not None:
        options = ReadOptions(text_field=text_field or TEXT_FIELD)
        return (document.text for document in file_format.read(path, options))
    if text_field:
        raise UserError(
            f"--text_field {text_field}: {path} has no named fields, expected JSON lines or a "
            "table; leave it out"
        )
    return (text for _, text in read_text_lines(path, tables=()))


def _detect_json_array(path: str, head: bytes) -> FileKind | None:
    is_json = file_kinds.detect_by_name(path) is file_kinds.JSON_LINES
    return file_kinds.JSON_ARRAY if is_json and head.lstrip()[:1] == b"[" else None


def _check_kind(
    path: str, kind: FileKind | None, format: str, is_table: bool = False
) -> str | None:
    """Return the name of the format that reads files of a kind, None for plain text.

    Raises:
      UserError: No format reads this kind; or the kind is binary and the given format does not
        read it.
    """
    if kind is None:
        return None
    readers = [name for name, entry in all_formats().items() if kind in entry.kinds]
    if format == "auto" and readers:
        return readers[0]
    if format != "auto" and (format in readers or not kind.is_binary):
        return format
    remedy = f"--format {readers[0]} reads it" if readers else file_kinds.remedy(kind, path)
    if is_table:
        raise UserError(f"{path} is {kind.name}, expected a table: {remedy}")
    or_format = "" if kind.is_binary else "; or --format text (in a config: data.text_format)"
    raise UserError(f"{path} is {kind.name}, expected text: {remedy}{or_format}")
