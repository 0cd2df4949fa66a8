"""Read documents from files: plain text, JSON lines, WikiExtractor, TFDS, python-docs, pairs.

The layout of a file is detected from its name and its first bytes; binary files are refused.

A pair of source and target (TSV, JSON lines, TFDS) is a document of two lines, so that tokenizers,
encoding in child processes, held-out splits and fingerprints treat pairs like documents.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from bertjax.corpus.sources import PYTHON_DOCS, Source, find_sources, is_dataset
from bertjax.errors import UserError, nearest
from bertjax.io import file_kinds, storage
from bertjax.io.file_kinds import FileKind
from bertjax.io.lines import MAX_LINE_BYTES, read_head, read_lines, read_text_lines

FORMAT = "source-target"
"""Of text, and of the examples that are made of it."""

KEYS = ("source", "target")
"""In JSON."""


def document(source: str, target: str) -> str:
    """A pair as a document; line ends within it become spaces."""
    return "\n".join(" ".join(text.split("\n")).strip() for text in (source, target))


def pairs(path: str) -> Iterator[tuple[str, str]]:
    """Yields every pair of a file: of TSV, or of JSON objects, which begin with a brace.

    Raises:
      UserError: a line is no pair, or one of its texts is empty.
    """
    for where, line in read_text_lines(path):
        if not line.strip():
            continue
        is_json = path.partition(".")[2].startswith(("json", "ndjson")) or line.startswith("{")
        source, target = _of_json(line, where) if is_json else _of_tsv(line, where)
        if not (source.strip() and target.strip()):
            raise UserError(f"{where}: an empty source or target; fill it or remove the line")
        yield source, target


def _of_tsv(line: str, where: str) -> tuple[str, str]:
    fields = line.split("\t")
    if len(fields) != 2:
        raise UserError(
            f"{where}: {len(fields)} field(s), expected 2, a source and a target, between which "
            "stands a tab; fix or remove the line"
        )
    return fields[0], fields[1]


def _of_json(line: str, where: str) -> tuple[str, str]:
    try:
        row = json.loads(line)
        source, target = (row[key] for key in KEYS)
    except (ValueError, KeyError, TypeError, RecursionError):
        source = target = None
    if not (isinstance(source, str) and isinstance(target, str)):
        raise UserError(
            f'{where}: expected {{"source": "...", "target": "..."}}, got {line[:60]!r}; fix or '
            "remove the line"
        )
    # JSON may spell half of a surrogate pair, which no tokenizer takes.
    return tuple(text.encode("utf-8", "replace").decode() for text in (source, target))


LONGEST_DOCUMENT = MAX_LINE_BYTES
"""Bytes or characters; a longer document becomes several, so that memory stays bounded."""

LONGEST_JSON = 1 << 26
"""Bytes; JSON cannot be read in pieces."""

JSON_LINES = "jsonl"
"""The format whose documents are fields of JSON objects."""

_MOST_FIELDS = 8
"""The number of fields that an error lists."""

TEXT_FIELD = "text"
"""The field of a JSON object, or the feature of a dataset, that holds a document's text."""


class Document(NamedTuple):
    """A document as it stood in the input; `replaced` counts what was not UTF-8 in it."""

    text: str
    replaced: int = 0


def documents(
    inputs: Sequence[str],
    *,
    format: str = "auto",
    errors: str = "strict",
    tfds_data_dir: str | None = None,
    text_field: str = "",
) -> Iterator[str]:
    """Yields the text of every document that has any.

    Args:
      inputs: Globs, `python-docs`, `tfds:NAME:SPLIT`.
      format: How files are laid out, one of `formats()`; `auto` looks at each.
      errors: `strict` refuses what is not UTF-8, `replace` puts U+FFFD in its place.
      tfds_data_dir: Where datasets of `tfds:` lie prepared.
      text_field: The field of JSON lines, or the feature of a dataset, that holds the text; "" for
        `text`.

    Raises:
      UserError: an input is missing, damaged, not UTF-8, not laid out as said, of a kind that is no
        text, or all are empty.
    """
    found = False
    sources = find_sources(inputs)
    check(sources, format=format, text_field=text_field)
    options = {"errors": errors, "tfds_data_dir": tfds_data_dir, "text_field": text_field}
    for source in sources:
        for document in read(source, format=format, **options):
            if document.text:
                found = True
                yield document.text
    if not found:
        raise UserError(no_text(inputs))


def no_text(inputs: Sequence[str]) -> str:
    """The line that the user reads when inputs are there but hold nothing."""
    return f"no text in {', '.join(inputs)}: every document is empty; give --input files with text"


def formats() -> list[str]:
    """The names that `format` may have."""
    return ["auto", *_FORMATS]


def read(
    source: Source,
    *,
    format: str = "auto",
    errors: str = "strict",
    tfds_data_dir: str | None = None,
    text_field: str = "",
) -> Iterator[Document]:
    """Yields every document of a source in order, empty ones too, so that they can be counted."""
    if format not in formats():
        raise UserError(f"no format {format!r}: {nearest(format, formats())}")
    paired = format == FORMAT
    if source.name == PYTHON_DOCS:
        if paired:
            raise UserError("python-docs is text, no pairs: give files of pairs, or tfds:...")
        from bertjax.corpus import sources as corpus_sources

        yield from map(Document, corpus_sources.documents())
    elif source.name.startswith("tfds:"):
        from bertjax.corpus import sources as corpus_sources

        if paired:
            raw = corpus_sources.pairs(source.name, data_dir=tfds_data_dir)
        else:
            raw = corpus_sources.texts(source.name, data_dir=tfds_data_dir, feature=text_field)
        named = ((f"{source.name} #{number}", text) for number, text in enumerate(raw))
        yield from _bounded(_decode(name, 0, text, errors) for name, text in named)
    else:
        layout = _layout(source.name, format)
        if layout == JSON_LINES:
            found = _json_lines(source.name, errors, text_field or TEXT_FIELD)
        else:
            found = _FORMATS[layout](source.name, errors)
        yield from _bounded(found)


def check(sources: Sequence[Source], *, format: str = "auto", text_field: str = "") -> None:
    """Refuses what can be seen to be no text before anything is read or written.

    Files in buckets are judged by their names here, and by their content when they are read.

    Raises:
      UserError: a file is of a kind that is no text, or no input has a layout or fields to choose.
    """
    if format not in formats():
        raise UserError(f"no format {format!r}: {nearest(format, formats())}")
    has_fields = False
    for source in sources:
        if is_dataset(source.name):
            has_fields = has_fields or source.name != PYTHON_DOCS
        elif storage.is_remote(source.name):
            has_fields = True
            _refuse_kind(source.name, file_kinds.detect_by_name(source.name), format)
        else:
            has_fields = _layout(source.name, format) == JSON_LINES or has_fields
    has_layout = format in ("auto", FORMAT)
    if not has_layout and all(is_dataset(source.name) for source in sources):
        raise UserError(
            f"format {format!r} has no effect: got {', '.join(source.name for source in sources)}, "
            "expected files, whose layout it names; leave --format out (in a config: "
            "data.text_format)"
        )
    if text_field and (format == FORMAT or not has_fields):
        raise UserError(
            f"text_field={text_field!r}: no input has named fields, expected JSON lines or "
            "tfds:NAME:SPLIT; leave --text_field out"
        )


def _layout(path: str, format: str) -> str:
    """The name of the layout of a file, found out from its name and first bytes if it is `auto`.

    Raises:
      UserError: the file is of a kind that is no text.
    """
    start = read_head(path)
    _refuse_kind(path, file_kinds.detect_by_content(path, start), format)
    if format != "auto":
        return format
    first = next((line for line in start.split(b"\n") if line.strip()), b"")
    if _DOCUMENT_TAG.match(first):
        return "wikiextractor"
    if first.lstrip()[:1] == b"[" and _is_json(path):
        _refuse_kind(path, file_kinds.JSON_ARRAY, format)
    if _is_json(path) or re.match(rb'\s*\{\s*"[^"]*"\s*:', first):
        return JSON_LINES
    _refuse_kind(path, file_kinds.detect_by_name(path) or file_kinds.detect_table(start), format)
    if b"\0" in start:
        _refuse_kind(path, file_kinds.NUL_BYTES, format)
    return "text"


def _is_json(path: str) -> bool:
    return file_kinds.detect_by_name(path) is file_kinds.JSON_LINES


def _refuse_kind(path: str, kind: FileKind | None, format: str) -> None:
    """Refuses a kind that is no text; a format that was chosen allows all but binary kinds."""
    if kind is None or kind is file_kinds.JSON_LINES or (format != "auto" and not kind.is_binary):
        return
    chosen = "" if kind.is_binary else "; or --format text (in a config: data.text_format)"
    raise UserError(
        f"{path} is {kind.name}, expected text: {file_kinds.remedy(kind, path)}{chosen}"
    )


def _plain_text(path: str, errors: str) -> Iterator[Document]:
    """Blank lines stand between documents."""
    start, size, gathered = 0, 0, []
    for offset, line in read_lines(path):
        blank = not line.strip()
        if gathered and (blank or size + len(line) > LONGEST_DOCUMENT):
            yield _decode(path, start, b"".join(gathered), errors)
            size, gathered = 0, []
        if not blank:
            start = offset if not gathered else start
            gathered.append(line)
            size += len(line)
    if gathered:
        yield _decode(path, start, b"".join(gathered), errors)


def _one_a_line(path: str, errors: str) -> Iterator[Document]:
    """Every line is a document."""
    for offset, line in read_lines(path):
        yield _decode(path, offset, line, errors)


def _json_lines(path: str, errors: str, field: str = TEXT_FIELD) -> Iterator[Document]:
    """Every line is a JSON object, of which one field holds the text."""
    for number, (offset, line) in enumerate(read_lines(path, LONGEST_JSON), start=1):
        if not line.strip():
            continue
        if len(line) >= LONGEST_JSON // 2 and not line.endswith(b"\n"):
            raise UserError(f"{path}:{number}: the line is longer than 64 MiB; split the document")
        decoded = _decode(path, offset, line, errors)
        text = _text_of(decoded.text, f"{path}:{number}", field)
        # JSON may spell half of a surrogate pair, which no tokenizer takes.
        whole = text.encode("utf-8", "replace").decode()
        yield Document(whole.strip(), decoded.replaced)


def _text_of(line: str, where: str, field: str) -> str:
    """The text of a JSON object that is spelled on one line."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        path = where.rpartition(":")[0]
        spread = line in ("{", "[")
        fix = file_kinds.remedy(file_kinds.JSON_ARRAY, path) if spread else "fix the line"
        raise UserError(f"{where}: not a JSON object ({error}); {fix}") from None
    if not isinstance(row, dict):
        raise UserError(
            f'{where}: expected an object with a string "{field}", got {line[:60]!r}; fix the line '
            "or give another --format"
        )
    text = row.get(field)
    if isinstance(text, str):
        return text
    has = "holds no string" if field in row else "is missing"
    strings = [name for name, value in row.items() if isinstance(value, str)]
    listed = ", ".join(json.dumps(name, ensure_ascii=False) for name in strings[:_MOST_FIELDS])
    more = f" and {len(strings) - _MOST_FIELDS} more" if len(strings) > _MOST_FIELDS else ""
    choose = "choose one with --text_field NAME (in a config: data.text_field)"
    raise UserError(
        f"{where}: the field {json.dumps(field, ensure_ascii=False)} {has}; "
        + (f"fields with strings: {listed}{more}; {choose}" if strings else "no field holds one")
    )


_DOCUMENT_TAG = re.compile(rb'<doc id="[^"]*"[^>]*>\s*$')


def _wikiextractor(path: str, errors: str) -> Iterator[Document]:
    """Documents stand between tags: a line with the title, then a paragraph a line.

    One of nothing but a title is empty.
    """
    inside, has_body, start, size, gathered = False, False, 0, 0, []
    for number, (offset, line) in enumerate(read_lines(path), start=1):
        opens = line.startswith(b"<doc ") and _DOCUMENT_TAG.match(line) is not None
        closes = line.startswith(b"</doc>")
        if inside and (opens or closes or size + len(line) > LONGEST_DOCUMENT):
            yield _decode(path, start, b"".join(gathered) if has_body else b"", errors)
            size, gathered = 0, []
        if opens or closes:
            inside, has_body = opens, False
        elif inside:
            start = offset if not gathered else start
            has_body = has_body or bool(gathered and line.strip())
            gathered.append(line)
            size += len(line)
        elif line.strip():
            raise UserError(
                f"{path}:{number}: text outside of <doc ...> and </doc>; "
                "give --format text if this is not WikiExtractor's output"
            )
    if inside:
        raise UserError(f"{path} ends inside a document: no </doc>; replace the truncated file")


def _source_target(path: str, errors: str) -> Iterator[Document]:
    """Every line is a source and its target."""
    for source, target in pairs(path):
        yield Document(document(source, target))


_FORMATS: dict[str, Callable[[str, str], Iterator[Document]]] = {
    "text": _plain_text,
    "lines": _one_a_line,
    JSON_LINES: _json_lines,
    "wikiextractor": _wikiextractor,
    FORMAT: _source_target,
}


def _decode(path: str, offset: int, raw: bytes, errors: str) -> Document:
    try:
        text, replaced = raw.decode(), 0
    except UnicodeDecodeError as error:
        if errors == "strict":
            fix = "convert it to UTF-8, or give prepare or tokenizer --errors replace"
            if b"\0" in raw:
                fix = (
                    "it has NUL bytes as well, so that it is binary data and no text: leave it out"
                )
            raise UserError(
                f"{path} is not UTF-8 at byte {offset + error.start:,} "
                f"(0x{raw[error.start]:02x}); {fix}"
            ) from None
        text = raw.decode(errors="replace")
        replaced = text.count("\ufffd") - raw.count("\ufffd".encode())
    return Document(text.replace("\r\n", "\n").strip(), replaced)


def _bounded(found: Iterator[Document]) -> Iterator[Document]:
    """Parts documents that are too long, at a line end or a space where there is one."""
    for document in found:
        text, replaced = document
        while len(text) > LONGEST_DOCUMENT:
            window = text[:LONGEST_DOCUMENT]
            cut = max(window.rfind("\n"), window.rfind(" ") if "\n" not in window else 0)
            cut = cut if cut > 0 else LONGEST_DOCUMENT
            yield Document(text[:cut].rstrip(), replaced)
            text, replaced = text[cut:].lstrip(), 0
        yield Document(text, replaced)
