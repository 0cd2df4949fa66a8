"""Documents out of files: plain text, JSON lines, WikiExtractor's output, TFDS, Python's own text.

An input is a glob, `tfds:NAME:SPLIT`, or `python-docs`. Inputs are read in the order given, the
files of a glob in the order of their names, so that document numbers mean the same everywhere.
"""

import dataclasses
import glob
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from bertjax.data import source_target_text, storage
from bertjax.data.lines import LONGEST_LINE, lines
from bertjax.errors import UserError, nearest

LONGEST_DOCUMENT = LONGEST_LINE
"""Bytes or characters; a longer document becomes several, so that memory stays bounded."""

LONGEST_JSON = 1 << 26
"""Bytes; JSON cannot be read in pieces."""

_GLANCE = 1 << 16


class Document(NamedTuple):
    """A document as it stood in the input; `replaced` counts what was not UTF-8 in it."""

    text: str
    replaced: int = 0


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


def documents(
    inputs: Sequence[str],
    *,
    format: str = "auto",
    errors: str = "strict",
    tfds_data_dir: str | None = None,
) -> Iterator[str]:
    """Yields the text of every document that has any.

    Args:
      inputs: Globs, `python-docs`, `tfds:NAME:SPLIT`.
      format: How files are laid out, one of `formats()`; `auto` looks at each.
      errors: `strict` refuses what is not UTF-8, `replace` puts U+FFFD in its place.
      tfds_data_dir: Where datasets of `tfds:` lie prepared.

    Raises:
      UserError: an input is missing, damaged, not UTF-8, not laid out as said, or all are empty.
    """
    found = False
    for source in find_sources(inputs):
        for document in read(source, format=format, errors=errors, tfds_data_dir=tfds_data_dir):
            if document.text:
                found = True
                yield document.text
    if not found:
        raise UserError(no_text(inputs))


def no_text(inputs: Sequence[str]) -> str:
    """The line that a person reads when inputs are there but hold nothing."""
    return f"no text in {', '.join(inputs)}: every document is empty; give --input files with text"


def formats() -> list[str]:
    """The names that `format` may have."""
    return ["auto", *_FORMATS]


def find_sources(inputs: Sequence[str]) -> list[Source]:
    """Lists what the inputs stand for, each file once.

    Raises:
      UserError: there are no inputs, or one of them matches no file.
    """
    if not inputs:
        raise UserError("no input was given; give a glob of files, python-docs or tfds:NAME:SPLIT")
    found: dict[str, Source] = {}
    for name in inputs:
        if name == "python-docs" or name.startswith("tfds:"):
            found.setdefault(name, Source(name))
            continue
        for path in _files(name):
            found.setdefault(path, Source(path, *_size_and_time(path)))
    return list(found.values())


def _size_and_time(path: str) -> tuple[int, int]:
    if storage.is_remote(path):
        place = storage.place(path)
        size, version = storage.patiently(lambda: storage.listed(place), path)[""]
        return size, zlib.crc32(version.encode())
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def _files_in_bucket(pattern: str) -> list[str]:
    place = storage.place(pattern)
    if not glob.has_magic(place.name):
        matches = [place] if storage.patiently(place.exists, place) else []
    else:
        matches = storage.patiently(lambda: list(place.parent.glob(place.name)), place)
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


def read(
    source: Source,
    *,
    format: str = "auto",
    errors: str = "strict",
    tfds_data_dir: str | None = None,
) -> Iterator[Document]:
    """Yields every document of a source in order, empty ones too, so that they can be counted."""
    if format not in formats():
        raise UserError(f"no format {format!r}: {nearest(format, formats())}")
    paired = format == source_target_text.FORMAT
    if source.name == "python-docs":
        if paired:
            raise UserError("python-docs is text, no pairs: give files of pairs, or tfds:...")
        from bertjax.data import python_docs

        yield from map(Document, python_docs.documents())
    elif source.name.startswith("tfds:"):
        from bertjax.data import tfds_text

        read_texts = tfds_text.pairs if paired else tfds_text.texts
        raw = enumerate(read_texts(source.name, data_dir=tfds_data_dir))
        yield from _bounded(_decode(f"{source.name} #{n}", 0, text, errors) for n, text in raw)
    else:
        layout = _FORMATS[_detect(source.name) if format == "auto" else format]
        yield from _bounded(layout(source.name, errors))


def _detect(path: str) -> str:
    """Tells how a file is laid out from its name and its first line of text."""
    stem = re.sub(r"\.(gz|bz2|xz|zst)$", "", path)
    if stem.endswith((".jsonl", ".ndjson", ".json")):
        return "jsonl"
    first = next((line for _, line in lines(path, _GLANCE) if line.strip()), b"")
    if _DOCUMENT_TAG.match(first):
        return "wikiextractor"
    return "jsonl" if re.match(rb'\s*\{\s*"[^"]*"\s*:', first) else "text"


def _plain_text(path: str, errors: str) -> Iterator[Document]:
    """Blank lines stand between documents."""
    start, size, gathered = 0, 0, []
    for offset, line in lines(path):
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
    for offset, line in lines(path):
        yield _decode(path, offset, line, errors)


def _json_lines(path: str, errors: str) -> Iterator[Document]:
    """Every line is a JSON object with a `text`."""
    for number, (offset, line) in enumerate(lines(path, LONGEST_JSON), start=1):
        if not line.strip():
            continue
        if len(line) >= LONGEST_JSON // 2 and not line.endswith(b"\n"):
            raise UserError(f"{path}:{number}: the line is longer than 64 MiB; split the document")
        decoded = _decode(path, offset, line, errors)
        try:
            text = json.loads(decoded.text)["text"]
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{path}:{number}: not a JSON object ({error}); mend the line"
            ) from None
        except (KeyError, TypeError, IndexError):
            text = None
        if not isinstance(text, str):
            raise UserError(
                f'{path}:{number}: wanted an object with a string "text", '
                f"got {decoded.text[:60]!r}; mend the line or give another --format"
            )
        # JSON may spell half of a surrogate pair, which no tokenizer takes.
        whole = text.encode("utf-8", "replace").decode()
        yield Document(whole.strip(), decoded.replaced)


_DOCUMENT_TAG = re.compile(rb'<doc id="[^"]*"[^>]*>\s*$')


def _wikiextractor(path: str, errors: str) -> Iterator[Document]:
    """Documents stand between tags: a line with the title, then a paragraph a line.

    One of nothing but a title is empty.
    """
    inside, has_body, start, size, gathered = False, False, 0, 0, []
    for number, (offset, line) in enumerate(lines(path), start=1):
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
    for source, target in source_target_text.pairs(path):
        yield Document(source_target_text.document(source, target))


_FORMATS: dict[str, Callable[[str, str], Iterator[Document]]] = {
    "text": _plain_text,
    "lines": _one_a_line,
    "jsonl": _json_lines,
    "wikiextractor": _wikiextractor,
    source_target_text.FORMAT: _source_target,
}


def _decode(path: str, offset: int, raw: bytes, errors: str) -> Document:
    try:
        text, replaced = raw.decode(), 0
    except UnicodeDecodeError as error:
        if errors == "strict":
            raise UserError(
                f"{path} is not UTF-8 at byte {offset + error.start:,} "
                f"(0x{raw[error.start]:02x}); convert it, or give --errors replace"
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
