"""Read text files line by line, compressed or not, local or in a bucket.

Errors name the line, or how much of a damaged file could be read.
"""

import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO, TypeVar

from bertjax.errors import UserError
from bertjax.io import file_kinds, storage
from bertjax.io.file_kinds import HEAD_BYTES, FileKind
from bertjax.io.inputs import BUFFER, CORRUPTION_ERRORS, open_decompressed, reading_errors

MAX_LINE_BYTES = 1 << 20
"""A longer line is read in pieces, so that memory is bounded for every input."""

MAX_RECORD_BYTES = 1 << 26
"""A longer line is refused if it is a record, which cannot be read in pieces."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
Record = TypeVar("Record")
_STANDARD_INPUT = "standard input"


def read_lines(path: str, max_length: int = MAX_LINE_BYTES) -> Iterator[tuple[int, bytes]]:
    """Yield (byte offset, line) for every line of a file; offsets count decompressed bytes.

    A line keeps its line end. A line longer than `max_length` bytes is split after a space, or else
    between characters; only such a piece, or the end of the file, has no line end. In a file whose
    first block has carriage returns and no newline, carriage returns are line ends and are
    converted to newlines.

    Raises:
      UserError: The file cannot be opened, is not regular, or is truncated or corrupt (the
        message contains the number of bytes read before the damage).
    """
    offset, rest = 0, b""
    errors = reading_errors(path, lambda: f"{offset:,} bytes of text")
    with errors, _open(path, min(max_length, BUFFER)) as stream:
        while line := rest + stream.readline(max_length - len(rest)):
            rest = b""
            if len(line) >= max_length and not line.endswith(b"\n"):
                line, rest = _split_long_line(line)
            if offset == 0 and line.startswith(BYTE_ORDER_MARK):
                line, offset = line[3:], 3
            yield offset, line
            offset += len(line)


def read_records(path: str) -> Iterator[tuple[int, bytes]]:
    """Yield (byte offset, line) for every line of a file, like `read_lines`, but never a piece.

    Raises:
      UserError: As for `read_lines`, or a line is longer than `MAX_RECORD_BYTES`.
    """
    # The pieces of a line that is too long for `read_lines` have at least half of its limit.
    lines = read_lines(path, 2 * MAX_RECORD_BYTES)
    for number, (offset, line) in enumerate(lines, start=1):
        if len(line) > MAX_RECORD_BYTES:
            raise UserError(
                f"{path}:{number}: got a line over {MAX_RECORD_BYTES >> 20} MiB, expected less; "
                "split it"
            )
        yield offset, line


def read_head(path: str) -> bytes:
    """Read the first 64 KiB of a file, decompressed; less if the file is damaged within them.

    Raises:
      UserError: The file cannot be opened.
    """
    with reading_errors(path, lambda: "0 bytes of text"), _open(path, BUFFER) as stream:
        return stream.peek().removeprefix(BYTE_ORDER_MARK)


def read_json_lines(path: str, parse: Callable[[str, str], Record], expected: str) -> list[Record]:
    """Reads a file with one record in each line.

    Args:
      path: The file, in any format that `read_text_lines` reads.
      parse: Makes a record of (line, where).
      expected: Description of the lines, for error messages.

    Raises:
      UserError: the file is missing or empty, or `parse` refuses a line.
    """
    file = storage.to_path(path)
    if not file.is_file():
        raise UserError(f"no file {file}: expected {expected}")
    found = [parse(line, where) for where, line in read_text_lines(path) if line.strip()]
    if not found:
        raise UserError(f"{file} is empty: expected {expected}")
    return found


def read_text_lines(
    path: str | None, *, tables: Sequence[FileKind] | None = None
) -> Iterator[tuple[str, str]]:
    """Iterate over (where, text) for every line of a file or of standard input, without line ends.

    `where` is "FILE:NUMBER", for error messages.

    Args:
      path: The file, whose format is checked immediately; None for standard input.
      tables: The formats of tables that the caller can read; None for any.

    Raises:
      UserError: As for `read_records`; the file is not text, or a line is not UTF-8.
    """
    if path is None:
        return _decode_lines(_STANDARD_INPUT, _check_first_line(sys.stdin.buffer, tables))
    _check_kind(path, read_head(path), tables)
    return _decode_lines(path, (raw for _, raw in read_records(path)))


def _check_first_line(
    stream: Iterable[bytes], tables: Sequence[FileKind] | None
) -> Iterator[bytes]:
    """Yield the lines of standard input; the first one is used to detect its format."""
    for number, raw in enumerate(stream):
        if number == 0:
            raw = raw.removeprefix(BYTE_ORDER_MARK)
            _check_kind(_STANDARD_INPUT, raw, tables)
        yield raw


def _decode_lines(name: str, lines: Iterator[bytes]) -> Iterator[tuple[str, str]]:
    for number, raw in enumerate(lines, start=1):
        where = f"{name}:{number}"
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise UserError(
                f"{where}: byte {error.start} is not UTF-8; convert the text to UTF-8"
            ) from None
        yield where, text.rstrip("\r\n")


def _check_kind(name: str, start: bytes, tables: Sequence[FileKind] | None) -> None:
    kind = file_kinds.detect_by_content(name, start) or file_kinds.detect_by_name(name)
    if kind is None and b"\0" in start:
        kind = file_kinds.NUL_BYTES
    if kind is not None and not (kind.is_table and (tables is None or kind in tables)):
        raise UserError(
            f"{name} is {kind.name}, expected one text per line: {file_kinds.remedy(kind, name)}"
        )


def _open(path: str, buffer: int) -> BinaryIO:
    """Open a file for reading its decompressed bytes, with newlines as line ends."""
    stream = _NewlineReader(open_decompressed(path, buffer))
    return io.BufferedReader(stream, max(buffer, HEAD_BYTES))


class _NewlineReader(io.RawIOBase):
    """A stream that converts the carriage returns of old Macintosh files to newlines.

    Such a file has carriage returns and no newline in its first block. In other files a bare
    carriage return is part of a line, as in a log with progress bars. Byte offsets are unchanged.
    """

    def __init__(self, stream: BinaryIO):
        self._stream, self._failure = stream, None
        block = bytearray()
        try:
            while len(block) < HEAD_BYTES and (more := stream.read1(HEAD_BYTES - len(block))):
                block += more
        except CORRUPTION_ERRORS as error:
            self._failure = error  # raised after the bytes before the damage have been read
        self._is_old_mac = b"\r" in block and b"\n" not in block
        self._block = bytes(block)

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._stream.close()
        super().close()

    def readinto(self, buffer: memoryview) -> int:
        if not self._is_old_mac and not self._block and not self._failure:
            return self._stream.readinto1(buffer)
        data, self._block = self._block[: len(buffer)], self._block[len(buffer) :]
        if not data and self._failure:
            raise self._failure
        data = data or self._stream.read1(len(buffer))
        if self._is_old_mac:
            data = self._convert_returns(data)
        buffer[: len(data)] = data
        return len(data)

    def _convert_returns(self, data: bytes) -> bytes:
        following = self._block[:1] or (b"" if self._failure else self._stream.peek(1)[:1])
        return _BARE_RETURN.sub(b"\n", data + following)[: len(data)]


_BARE_RETURN = re.compile(rb"\r(?!\n)")


def _split_long_line(line: bytes) -> tuple[bytes, bytes]:
    """Split a line after its last space, or else before a UTF-8 character."""
    cut = line.rfind(b" ", len(line) // 2) + 1
    if not cut:
        cut = len(line) - 1
        while cut > len(line) - 4 and line[cut] & 0xC0 == 0x80:
            cut -= 1
    return line[:cut], line[cut:]
