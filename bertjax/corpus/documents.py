"""Documents of a corpus: decode, clean and split their text; read pairs of source and target."""

import json
from collections.abc import Iterator
from typing import NamedTuple

from bertjax.errors import UserError
from bertjax.io import file_kinds
from bertjax.io.lines import MAX_LINE_BYTES, read_text_lines

MAX_DOCUMENT_LENGTH = MAX_LINE_BYTES
"""Bytes or characters; a longer document is split into several, so that memory is bounded."""

PAIR_FORMAT = "source-target"
"""Name of the format of pairs, and of the training examples made from them."""

_PAIR_KEYS = ("source", "target")


class Document(NamedTuple):
    """The text of a document, and how many invalid byte sequences were replaced by U+FFFD."""

    text: str
    replaced: int = 0


def decode(path: str, offset: int, raw: bytes, errors: str) -> Document:
    """Decode the UTF-8 bytes of a document, and clean the text as `clean` does.

    Args:
      path: Name of the input, for the error message.
      offset: Byte offset of the document in the input, for the error message.
      raw: The bytes.
      errors: `strict` to refuse invalid UTF-8, `replace` to replace it by U+FFFD.

    Raises:
      UserError: The bytes are not UTF-8 and `errors` is `strict`.
    """
    text, replaced = decode_bytes(path, offset, raw, errors)
    return Document(clean(text), replaced)


def decode_bytes(path: str, offset: int, raw: bytes, errors: str) -> tuple[str, int]:
    """Return the text of UTF-8 bytes as it is, and the number of replaced sequences.

    See `decode` for the arguments and errors.
    """
    try:
        return raw.decode(), 0
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
        return text, text.count("\ufffd") - raw.count("\ufffd".encode())


def clean(text: str) -> str:
    """Convert line ends to newlines, and remove white space around a text."""
    return text.replace("\r\n", "\n").strip()


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which JSON can escape and which tokenizers refuse, by `?`."""
    return text.encode("utf-8", "replace").decode()


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


def join_pair(source: str, target: str) -> str:
    """Convert a pair to a document of two lines; line ends inside a text become spaces."""
    return "\n".join(" ".join(text.split("\n")).strip() for text in (source, target))


def read_pairs(path: str) -> Iterator[tuple[str, str]]:
    """Yield (source, target) of every line of a TSV or JSON lines file.

    A line is read as JSON in a file with an extension of JSON lines; in a file without one, nor one
    of TSV, if it starts with a brace.

    Raises:
      UserError: A line is not a pair, or one of its texts is empty or too long.
    """
    kind = file_kinds.detect_by_name(path)
    for where, line in read_text_lines(path):
        if not line.strip():
            continue
        has_brace = kind is not file_kinds.TSV and line.lstrip().startswith("{")
        is_json = kind is file_kinds.JSON_LINES or has_brace
        source, target = _parse_json_pair(line, where) if is_json else _parse_tsv_pair(line, where)
        if not (source.strip() and target.strip()):
            raise UserError(
                f"{where}: got an empty source or target, expected text; fill it or remove the line"
            )
        if len(source) + len(target) >= MAX_DOCUMENT_LENGTH:  # would be split into two documents
            raise UserError(
                f"{where}: got a pair of {len(source) + len(target):,} characters, expected fewer "
                f"than {MAX_DOCUMENT_LENGTH:,}; shorten it or remove the line"
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
            f'{where}: got {line[:60]!r}, expected {{"source": "...", "target": "..."}}; fix or '
            "remove the line"
        )
    return replace_surrogates(source), replace_surrogates(target)
