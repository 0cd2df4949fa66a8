"""Read documents from text files: plain text, lines, JSON lines, WikiExtractor, pairs.

A pair of source and target is a document of two lines, so that tokenizers, encoding in child
processes, held-out splits and fingerprints treat pairs like documents.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from bertjax.errors import UserError
from bertjax.io import file_kinds
from bertjax.io.lines import MAX_LINE_BYTES, read_lines, read_text_lines

FORMAT = "source-target"
"""Name of the layout of pairs, and of the training examples made from them."""

JSON_LINES = "jsonl"
"""Name of the layout whose documents are fields of JSON objects."""

TEXT_FIELD = "text"
"""Default field of a JSON object, or feature of a dataset, that contains the document."""

MAX_DOCUMENT_LENGTH = MAX_LINE_BYTES
"""Bytes or characters; a longer document is split into several, so that memory is bounded."""

MAX_JSON_BYTES = 1 << 26
"""Maximum size of a JSON object, which cannot be read in pieces."""

_PAIR_KEYS = ("source", "target")
_MAX_LISTED_FIELDS = 8
_DOCUMENT_TAG = re.compile(rb'<doc id="[^"]*"[^>]*>\s*$')


class Document(NamedTuple):
    """The text of a document, and how many invalid byte sequences were replaced by U+FFFD."""

    text: str
    replaced: int = 0


def join_pair(source: str, target: str) -> str:
    """Convert a pair to a document of two lines; line ends inside a text become spaces."""
    return "\n".join(" ".join(text.split("\n")).strip() for text in (source, target))


def read_pairs(path: str) -> Iterator[tuple[str, str]]:
    """Yield (source, target) of every line of a TSV or JSON lines file.

    A line is read as JSON if the file name says so or the line starts with a brace.

    Raises:
      UserError: A line is not a pair, or one of its texts is empty.
    """
    for where, line in read_text_lines(path):
        if not line.strip():
            continue
        is_json = path.partition(".")[2].startswith(("json", "ndjson")) or line.startswith("{")
        source, target = _parse_json_pair(line, where) if is_json else _parse_tsv_pair(line, where)
        if not (source.strip() and target.strip()):
            raise UserError(
                f"{where}: got an empty source or target, expected text; fill it or remove the line"
            )
        yield source, target


def _parse_tsv_pair(line: str, where: str) -> tuple[str, str]:
    fields = line.split("\t")
    if len(fields) != 2:
        raise UserError(
            f"{where}: got {len(fields)} field(s), expected 2, a source and a target separated by "
            "a tab; fix or remove the line"
        )
    return fields[0], fields[1]


def _parse_json_pair(line: str, where: str) -> tuple[str, str]:
    try:
        row = json.loads(line)
        source, target = (row[key] for key in _PAIR_KEYS)
    except (ValueError, KeyError, TypeError, RecursionError):
        source = target = None
    if not (isinstance(source, str) and isinstance(target, str)):
        raise UserError(
            f'{where}: expected {{"source": "...", "target": "..."}}, got {line[:60]!r}; fix or '
            "remove the line"
        )
    return _replace_surrogates(source), _replace_surrogates(target)


def _replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which JSON can escape and which tokenizers refuse, by `?`."""
    return text.encode("utf-8", "replace").decode()


def read_plain_text(path: str, errors: str) -> Iterator[Document]:
    """Read documents that are separated by blank lines."""
    start, size, document = 0, 0, []
    for offset, line in read_lines(path):
        blank = not line.strip()
        if document and (blank or size + len(line) > MAX_DOCUMENT_LENGTH):
            yield decode(path, start, b"".join(document), errors)
            size, document = 0, []
        if not blank:
            start = offset if not document else start
            document.append(line)
            size += len(line)
    if document:
        yield decode(path, start, b"".join(document), errors)


def read_one_per_line(path: str, errors: str) -> Iterator[Document]:
    """Read a document from every line."""
    for offset, line in read_lines(path):
        yield decode(path, offset, line, errors)


def read_json_lines(path: str, errors: str, field: str = TEXT_FIELD) -> Iterator[Document]:
    """Read a document from a field of the JSON object on every line."""
    for number, (offset, line) in enumerate(read_lines(path, MAX_JSON_BYTES), start=1):
        if not line.strip():
            continue
        if len(line) >= MAX_JSON_BYTES // 2 and not line.endswith(b"\n"):
            raise UserError(
                f"{path}:{number}: got a line over 64 MiB, expected less; split the document"
            )
        decoded = decode(path, offset, line, errors)
        text = _parse_json_text(decoded.text, f"{path}:{number}", field)
        yield Document(_replace_surrogates(text).strip(), decoded.replaced)


def _parse_json_text(line: str, where: str, field: str) -> str:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        path = where.rpartition(":")[0]
        is_multiline = line in ("{", "[")
        fix = file_kinds.remedy(file_kinds.JSON_ARRAY, path) if is_multiline else "fix the line"
        raise UserError(f"{where}: not a JSON object ({error}); {fix}") from None
    if not isinstance(row, dict):
        raise UserError(
            f'{where}: expected an object with a string "{field}", got {line[:60]!r}; fix the line '
            "or give another --format"
        )
    text = row.get(field)
    if not isinstance(text, str):
        raise UserError(_no_text_field(row, where, field))
    return text


def _no_text_field(row: dict, where: str, field: str) -> str:
    """The message for a JSON object whose text field is missing or no string."""
    problem = "is no string" if field in row else "is missing"
    strings = [name for name, value in row.items() if isinstance(value, str)]
    names = [json.dumps(name, ensure_ascii=False) for name in strings[:_MAX_LISTED_FIELDS]]
    more = f" and {len(strings) - len(names)} more" if len(strings) > len(names) else ""
    remedy = (
        f"string fields: {', '.join(names)}{more}; choose one with --text_field NAME (in a config: "
        "data.text_field)"
        if strings
        else "no field is a string"
    )
    return f"{where}: the field {json.dumps(field, ensure_ascii=False)} {problem}; {remedy}"


def read_wikiextractor(path: str, errors: str) -> Iterator[Document]:
    """Read documents between <doc> tags: the title on a line, then a paragraph per line.

    A document that consists of its title only is yielded as an empty one.
    """
    inside, has_body, start, size, document = False, False, 0, 0, []
    for number, (offset, line) in enumerate(read_lines(path), start=1):
        opens = line.startswith(b"<doc ") and _DOCUMENT_TAG.match(line) is not None
        closes = line.startswith(b"</doc>")
        if inside and (opens or closes or size + len(line) > MAX_DOCUMENT_LENGTH):
            yield decode(path, start, b"".join(document) if has_body else b"", errors)
            size, document = 0, []
        if opens or closes:
            inside, has_body = opens, False
        elif inside:
            start = offset if not document else start
            has_body = has_body or bool(document and line.strip())
            document.append(line)
            size += len(line)
        elif line.strip():
            raise UserError(
                f"{path}:{number}: got text outside of <doc ...> and </doc>; give --format text if "
                "this is not the output of WikiExtractor"
            )
    if inside:
        raise UserError(f"{path}: the last document has no </doc>; replace the truncated file")


def read_source_target(path: str, errors: str) -> Iterator[Document]:
    """Read a pair of source and target from every line."""
    for source, target in read_pairs(path):
        yield Document(join_pair(source, target))


LAYOUTS: dict[str, Callable[[str, str], Iterator[Document]]] = {
    "text": read_plain_text,
    "lines": read_one_per_line,
    JSON_LINES: read_json_lines,
    "wikiextractor": read_wikiextractor,
    FORMAT: read_source_target,
}
"""Reader of each layout: (path, what to do on invalid UTF-8) -> documents."""


def starts_wikiextractor(line: bytes) -> bool:
    """Whether a line is an opening tag of WikiExtractor."""
    return _DOCUMENT_TAG.match(line) is not None


def decode(path: str, offset: int, raw: bytes, errors: str) -> Document:
    """Decode the UTF-8 bytes of a document.

    Args:
      path: Name of the input, for the error message.
      offset: Byte offset of the document in the input, for the error message.
      raw: The bytes.
      errors: `strict` to refuse invalid UTF-8, `replace` to replace it by U+FFFD.

    Raises:
      UserError: The bytes are not UTF-8 and `errors` is `strict`.
    """
    try:
        text, replaced = raw.decode(), 0
    except UnicodeDecodeError as error:
        if errors == "strict":
            fix = "convert it to UTF-8, or give prepare or tokenizer --errors replace"
            if b"\0" in raw:
                fix = "it has NUL bytes too, so it is binary data: remove it from the inputs"
            raise UserError(
                f"{path} is not UTF-8 at byte {offset + error.start:,} "
                f"(0x{raw[error.start]:02x}); {fix}"
            ) from None
        text = raw.decode(errors="replace")
        replaced = text.count("\ufffd") - raw.count("\ufffd".encode())
    return Document(text.replace("\r\n", "\n").strip(), replaced)


def split_long(documents: Iterator[Document]) -> Iterator[Document]:
    """Split documents longer than `MAX_DOCUMENT_LENGTH`, at a line end or a space if possible."""
    for text, replaced in documents:
        while len(text) > MAX_DOCUMENT_LENGTH:
            window = text[:MAX_DOCUMENT_LENGTH]
            cut = max(window.rfind("\n"), window.rfind(" ") if "\n" not in window else 0)
            cut = cut if cut > 0 else MAX_DOCUMENT_LENGTH
            yield Document(text[:cut].rstrip(), replaced)
            text, replaced = text[cut:].lstrip(), 0
        yield Document(text, replaced)
