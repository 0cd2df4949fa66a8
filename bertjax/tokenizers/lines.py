"""Tokenize lines of text, or convert lines of token ids to text, as soon as they arrive."""

import itertools
import json
import sys
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from bertjax.errors import UserError
from bertjax.interfaces import Tokenizer
from bertjax.io.lines import BYTE_ORDER_MARK, read_text_lines

Lines = list[tuple[str, str]]
"""(location, for messages; text) of each line."""

_READ_BYTES = 1 << 20
_LINES_PER_CHUNK = 4_096


def read_batches(path: str | None) -> Iterator[Lines]:
    """Yields lines of a file in batches; of standard input all complete ones received so far.

    Args:
      path: The file; None for standard input.

    Raises:
      UserError: the file cannot be read, or a line is not UTF-8.
    """
    if path is None:
        yield from _read_received_lines(sys.stdin.buffer)
        return
    lines = read_text_lines(path)
    while group := list(itertools.islice(lines, _LINES_PER_CHUNK)):
        yield group


def encode_lines(tokenizer: Tokenizer, batches: Iterable[Lines]) -> Iterator[list[str]]:
    """Encodes every line as a JSON object with `ids` and `pieces`.

    Special tokens are neither added nor recognised.
    """
    for lines in batches:
        rows = tokenizer.encode_batch([text for _, text in lines])
        yield [
            json.dumps({"ids": ids, "pieces": tokenizer.ids_to_pieces(ids)}, ensure_ascii=False)
            for ids in rows
        ]


def decode_lines(tokenizer: Tokenizer, batches: Iterable[Lines]) -> Iterator[list[str]]:
    """Decodes lines: JSON objects with `ids`, JSON lists, or ids separated by spaces.

    Raises:
      UserError: a line is none of these, or an id is not in the vocabulary.
    """
    for lines in batches:
        texts = []
        for where, line in lines:
            try:
                texts.append(tokenizer.decode(_parse_ids(line.strip())))
            except UserError as error:
                yield texts
                raise UserError(f"{where}: {error}") from None
        yield texts


def _read_received_lines(stream: BinaryIO) -> Iterator[Lines]:
    """Yields all complete lines received so far: many at once of a file, one of a terminal."""
    unfinished: list[bytes] = []
    number = 1
    while chunk := stream.read1(_READ_BYTES):
        head, newline, tail = chunk.rpartition(b"\n")
        if newline:
            lines = b"".join([*unfinished, head]).split(b"\n")
            yield from _decode_utf8(lines, number)
            number, unfinished = number + len(lines), []
        unfinished.append(tail)
    if any(unfinished):
        yield from _decode_utf8([b"".join(unfinished)], number)


def _decode_utf8(lines: list[bytes], number: int) -> Iterator[Lines]:
    """Yields the lines as text, those before an invalid one too.

    Args:
      lines: Lines without their ends.
      number: Number of the first line, from 1.
    """
    if number == 1:
        lines[0] = lines[0].removeprefix(BYTE_ORDER_MARK)
    texts: Lines = []
    for place, line in enumerate(lines, number):
        where = f"standard input, line {place}"
        try:
            texts.append((where, line.removesuffix(b"\r").decode()))
        except UnicodeDecodeError as error:
            yield texts
            raise UserError(
                f"{where}, byte {error.start}: not UTF-8; convert the text with iconv"
            ) from None
    yield texts


def _parse_ids(text: str) -> list[int]:
    try:
        ids = json.loads(text) if text.startswith(("{", "[")) else [int(n) for n in text.split()]
        if isinstance(ids, dict):
            ids = ids["ids"]
        if not isinstance(ids, list) or any(type(identity) is not int for identity in ids):
            raise ValueError
    except (ValueError, KeyError):
        raise UserError(
            f'got {text[:60]!r}, expected {{"ids": [7592, 2088]}}, [7592, 2088] or 7592 2088'
        ) from None
    return ids
