"""Read the lines of a file, compressed or not; an error names the damaged line."""

import bz2
import contextlib
import gzip
import io
import lzma
import os
import pathlib
import re
import stat
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

from bertjax.errors import UserError
from bertjax.io import file_kinds, storage
from bertjax.io.file_kinds import HEAD_BYTES, FileKind

MAX_LINE_BYTES = 1 << 20
"""Bytes; a longer line comes in pieces, so that no input needs more memory than this."""

_BUFFER = 1 << 20
_DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, OSError, ValueError)
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_STANDARD_INPUT = "standard input"


def read_lines(path: str, max_length: int = MAX_LINE_BYTES) -> Iterator[tuple[int, bytes]]:
    """Yields (byte offset, line) with line ends; offsets count decompressed bytes.

    A line longer than `max_length` comes in pieces, cut behind a space or else between characters:
    only such a piece, or the end of the file, lacks a line end. In a file whose first block has
    carriage returns and no newline, carriage returns are line ends and are given as newlines.

    Raises:
      UserError: the file cannot be opened, is no regular file, or is truncated or corrupt (it says
        how far it was good).
    """
    offset, rest = 0, b""
    with _errors_of(path, lambda: offset), _open(path, min(max_length, _BUFFER)) as stream:
        while line := rest + stream.readline(max_length - len(rest)):
            rest = b""
            if len(line) >= max_length and not line.endswith(b"\n"):
                line, rest = _cut(line)
            if offset == 0 and line.startswith(BYTE_ORDER_MARK):
                line, offset = line[3:], 3
            yield offset, line
            offset += len(line)


def read_head(path: str) -> bytes:
    """The first 64 KiB of a file, decompressed: all that comes before damage, if there is some.

    Raises:
      UserError: the file cannot be opened.
    """
    with _errors_of(path, lambda: 0), _open(path, _BUFFER) as stream:
        return stream.peek().removeprefix(BYTE_ORDER_MARK)


@contextlib.contextmanager
def _errors_of(path: str, good: Callable[[], int]) -> Iterator[None]:
    """Turns errors of reading a file into a line for the user; `good` counts what was read."""
    try:
        yield
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except _DAMAGE as error:
        raise UserError(
            f"{path} is truncated or corrupt: it is good for {good():,} bytes of text and then "
            f"fails ({error}); replace it and run the same command again, or leave it out"
        ) from error


def read_text_lines(
    path: str | None, *, tables: Sequence[FileKind] | None = None
) -> Iterator[tuple[str, str]]:
    """Returns (where, text) of every line of a file, or of standard input, without line ends.

    Args:
      path: The file, whose kind is checked at once; None for standard input.
      tables: The kinds of tables whose lines the caller can read; None for any.

    Raises:
      UserError: as `lines` does, the file is of a kind that is no text, or a line is not UTF-8;
        `where` names it.
    """
    if path is None:
        return _decoded(_STANDARD_INPUT, _checked(iter(sys.stdin.buffer), tables))
    _check_kind(path, read_head(path), tables)
    return _decoded(path, (raw for _, raw in read_lines(path)))


def _checked(found: Iterator[bytes], tables: Sequence[FileKind] | None) -> Iterator[bytes]:
    """Passes on what standard input has; its first line decides about its kind."""
    for number, raw in enumerate(found):
        if number == 0:
            raw = raw.removeprefix(BYTE_ORDER_MARK)
            _check_kind(_STANDARD_INPUT, raw, tables)
        yield raw


def _decoded(name: str, found: Iterator[bytes]) -> Iterator[tuple[str, str]]:
    for number, raw in enumerate(found, start=1):
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


def read_text(path: pathlib.Path) -> str:
    """The text of a file that is read at once, without a byte order mark.

    Raises:
      UserError: it is not UTF-8.
    """
    data = path.read_bytes()
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = 1 + data.count(b"\n", 0, error.start)
        raise UserError(
            f"{path} line {line}: byte {error.start} (0x{data[error.start]:02x}) is not UTF-8; "
            "convert the file to UTF-8"
        ) from None


def _open(path: str, buffer: int) -> BinaryIO:
    """Opens a file for reading its decompressed bytes with newlines as line ends."""
    return io.BufferedReader(_Lines(_decompressed(path, buffer)), max(buffer, HEAD_BYTES))


def _decompressed(path: str, buffer: int) -> BinaryIO:
    """Opens a file for reading what was compressed; the first bytes tell how it was."""
    if storage.is_remote(path):
        place = storage.to_path(path)
        compressed = storage.with_retries(lambda: place.open("rb"), path)
        magic = storage.with_retries(lambda: compressed.read(6), path)
        compressed.seek(0)
    else:
        _check_regular(path)
        compressed = path
        with open(path, "rb") as stream:
            magic = stream.read(6)
    if magic.startswith(b"\x1f\x8b"):
        return io.BufferedReader(gzip.open(compressed), buffer)
    if magic.startswith(b"BZh"):
        return io.BufferedReader(bz2.BZ2File(compressed), buffer)
    if magic == b"\xfd7zXZ\x00":
        return io.BufferedReader(lzma.LZMAFile(compressed), buffer)
    if magic.startswith(b"\x28\xb5\x2f\xfd"):
        return io.BufferedReader(_ZstandardReader(compressed), buffer)
    suffix = path.rpartition(".")[2]
    if suffix in ("gz", "bz2", "xz", "zst"):
        raise EOFError(f"its name ends in .{suffix} but its first bytes are not those of one")
    if storage.is_remote(path):
        return io.BufferedReader(compressed, buffer)
    return open(path, "rb", buffering=buffer)


def _check_regular(path: str) -> None:
    """Refuses pipes: files are opened more than once, and a pipe would lose its first bytes."""
    mode = os.stat(path).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode):
        raise UserError(
            f"{path} is a pipe or a device, expected a file, which can be opened again: write its "
            "content to a file first"
        )


class _Lines(io.RawIOBase):
    """A stream whose line ends are newlines, also where the file has bare carriage returns.

    Such are the files of old Macs: their first block has carriage returns and no newline. Elsewhere
    a carriage return is part of a line, as in a log with progress bars. Sizes stay as they are.
    """

    def __init__(self, stream: BinaryIO):
        self._stream, self._failure = stream, None
        block = bytearray()
        try:
            while len(block) < HEAD_BYTES and (more := stream.read1(HEAD_BYTES - len(block))):
                block += more
        except _DAMAGE as error:
            self._failure = error  # raised once what comes before it has been read
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
        found, self._block = self._block[: len(buffer)], self._block[len(buffer) :]
        if not found and self._failure:
            raise self._failure
        found = found or self._stream.read1(len(buffer))
        if self._is_old_mac:
            found = self._with_newlines(found)
        buffer[: len(found)] = found
        return len(found)

    def _with_newlines(self, found: bytes) -> bytes:
        following = self._block[:1] or (b"" if self._failure else self._stream.peek(1)[:1])
        return _BARE_RETURN.sub(b"\n", found + following)[: len(found)]


_BARE_RETURN = re.compile(rb"\r(?!\n)")


class _ZstandardReader(io.RawIOBase):
    """Frames of Zstandard; unlike the library's own reader it notices a truncated last one."""

    def __init__(self, compressed: str | BinaryIO):
        import zstandard

        self._new_frame = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj
        self._failure = zstandard.ZstdError
        self._stream = io.FileIO(compressed) if isinstance(compressed, str) else compressed
        self._frame = None
        self._text = b""

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._stream.close()
        super().close()

    def readinto(self, buffer: memoryview) -> int:
        while not self._text:
            compressed = self._unused() or self._stream.read(_BUFFER >> 3)
            if not compressed:
                if self._frame is not None and not self._frame.eof:
                    raise EOFError("the last Zstandard frame has no end")
                return 0
            if self._frame is None or self._frame.eof:
                self._frame = self._new_frame()
            try:
                self._text = self._frame.decompress(compressed)
            except self._failure as error:
                raise ValueError(str(error)) from error
        taken = self._text[: len(buffer)]
        buffer[: len(taken)] = taken
        self._text = self._text[len(taken) :]
        return len(taken)

    def _unused(self) -> bytes:
        return self._frame.unused_data if self._frame is not None and self._frame.eof else b""


def _cut(line: bytes) -> tuple[bytes, bytes]:
    """Parts a line behind its last space, or where a character of UTF-8 begins."""
    cut = line.rfind(b" ", len(line) // 2) + 1
    if not cut:
        cut = len(line) - 1
        while cut > len(line) - 4 and line[cut] & 0xC0 == 0x80:
            cut -= 1
    return line[:cut], line[cut:]
