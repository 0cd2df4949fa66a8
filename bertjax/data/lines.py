"""The lines of a file, whether it is compressed or not, and what is said of a damaged one."""

import bz2
import gzip
import io
import lzma
import pathlib
import sys
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from bertjax.data import storage
from bertjax.errors import UserError

LONGEST_LINE = 1 << 20
"""Bytes; a longer line comes in pieces, so that no input needs more memory than this."""

_BUFFER = 1 << 20
_DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, OSError, ValueError)
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def lines(path: str, longest: int = LONGEST_LINE) -> Iterator[tuple[int, bytes]]:
    """Yields (byte offset, line) with line ends; offsets count decompressed bytes.

    A line longer than `longest` comes in pieces, cut behind a space or else between characters:
    only such a piece, or the end of the file, lacks a line end.

    Raises:
      UserError: the file cannot be opened, or is truncated or corrupt (it says how far it was
        good).
    """
    offset, rest = 0, b""
    try:
        with _open(path, min(longest, _BUFFER)) as stream:
            while line := rest + stream.readline(longest - len(rest)):
                rest = b""
                if len(line) >= longest and not line.endswith(b"\n"):
                    line, rest = _cut(line)
                if offset == 0 and line.startswith(_BYTE_ORDER_MARK):
                    line, offset = line[3:], 3
                yield offset, line
                offset += len(line)
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except _DAMAGE as error:
        raise UserError(
            f"{path} is truncated or corrupt: it is good for {offset:,} bytes of text and then "
            f"fails ({error}); replace it and run the same command again, or leave it out"
        ) from error


def texts(path: str | None) -> Iterator[tuple[str, str]]:
    """Yields (where, text) of every line of a file, or of standard input, without line ends.

    Raises:
      UserError: as `lines` does, or a line is not UTF-8; `where` names it.
    """
    found = iter(sys.stdin.buffer) if path is None else (raw for _, raw in lines(path))
    for number, raw in enumerate(found, start=1):
        where = f"{path or 'standard input'}:{number}"
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise UserError(
                f"{where}: byte {error.start} is not UTF-8; convert the text to UTF-8"
            ) from None
        yield where, text.rstrip("\r\n")


def whole(path: pathlib.Path) -> str:
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
    """Opens a file for reading what was compressed; the first bytes tell how it was."""
    if storage.is_remote(path):
        place = storage.place(path)
        compressed = storage.patiently(lambda: place.open("rb"), path)
        magic = storage.patiently(lambda: compressed.read(6), path)
        compressed.seek(0)
    else:
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
