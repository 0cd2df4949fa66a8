"""Find and open input files, by path or URL, and decompress them while they are read.

URLs are gs://, s3://, and hf:// of the Hugging Face Hub; files are read in blocks by the fsspec
client of the scheme, not copied. Only inputs may be on the Hub; runs and corpora are written by
`io/storage.py`. The first bytes of a file identify its compression: gzip, bzip2, xz or Zstandard.
"""

import bz2
import contextlib
import glob
import gzip
import io
import lzma
import os
import shutil
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from bertjax.errors import UserError
from bertjax.io import file_kinds, storage

BUFFER = 1 << 20
"""Default size of read buffers in bytes."""

CORRUPTION_ERRORS = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, OSError, ValueError)
"""Errors of reading a damaged file."""

_PACKAGES = {"gs": "bertjax[gcs]", "s3": "bertjax[s3]", "hf": "huggingface_hub"}

_VERSION_KEYS = ("generation", "ETag", "blob_id")
"""Keys of the version of a file's content in the listings of gs://, s3:// and hf:// clients."""


@contextlib.contextmanager
def reading_errors(path: str, progress: Callable[[], str]) -> Iterator[None]:
    """A context manager that converts errors of reading a file to `UserError`.

    Args:
      path: The file.
      progress: Returns how much has been read, such as "12 rows", for the message.
    """
    try:
        yield
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise UserError(f"cannot read {path}: {error.strerror}; check the path") from None
    except CORRUPTION_ERRORS as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{path} is truncated or corrupt after {progress()} ({reason}); "
            "replace it and run the same command again, or remove it from the inputs"
        ) from error


def open_decompressed(path: str, buffer: int = BUFFER) -> BinaryIO:
    """Open a file for reading its decompressed bytes.

    Raises:
      UserError: The file is a pipe, or its URL is not supported.
      EOFError: The name of the file ends in that of another compression.
    """
    compressed, magic = _open(path)
    try:
        decompress = _decompressor(path, magic)
    except EOFError:
        compressed.close()
        raise
    if decompress:
        return io.BufferedReader(_Owner(decompress(compressed), compressed), buffer)
    return io.BufferedReader(compressed, buffer)


@contextlib.contextmanager
def open_seekable(path: str) -> Iterator[BinaryIO]:
    """A context manager that opens a file for random access to its decompressed bytes.

    A compressed file is decompressed to a temporary file first.

    Raises:
      UserError: The file cannot be opened, or its compression is damaged.
    """
    with contextlib.ExitStack() as stack:
        with reading_errors(path, lambda: "0 bytes"):
            stream, magic = _open(path)
            stack.enter_context(stream)
            if decompress := _decompressor(path, magic):
                copy = stack.enter_context(tempfile.TemporaryFile(prefix="bertjax-"))
                with decompress(stream) as decompressed:
                    shutil.copyfileobj(decompressed, copy, BUFFER)
                copy.seek(0)
                stream = copy
        yield stream if decompress else io.BufferedReader(stream, BUFFER)


def _open(path: str) -> tuple[BinaryIO, bytes]:
    """Open a file; return the stream and its first bytes."""
    if storage.is_remote(path):
        stream = _open_url(path)
        magic = storage.with_retries(lambda: stream.read(6), path)
    else:
        _check_regular(path)
        stream = io.FileIO(path)
        magic = stream.read(6)
    stream.seek(0)
    return stream, magic


def _decompressor(path: str, magic: bytes) -> Callable[[BinaryIO], BinaryIO] | None:
    """Return the function that decompresses a stream; None for a file that is not compressed."""
    if magic.startswith(b"\x1f\x8b"):
        return lambda stream: gzip.GzipFile(fileobj=stream, mode="rb")
    if magic.startswith(b"BZh"):
        return bz2.BZ2File
    if magic == b"\xfd7zXZ\x00":
        return lzma.LZMAFile
    if magic.startswith(b"\x28\xb5\x2f\xfd"):
        return lambda stream: io.BufferedReader(_ZstandardReader(stream), BUFFER)
    if suffix := file_kinds.split_name(path)[1]:
        raise EOFError(f"its name ends in {suffix}, but its first bytes are not those of {suffix}")
    return None


def _check_regular(path: str) -> None:
    """Refuse pipes: files are opened more than once, and a pipe would lose its first bytes."""
    mode = os.stat(path).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode):
        raise UserError(
            f"{path}: got a pipe or a device, expected a regular file, which can be opened twice; "
            "write its content to a file first"
        )


class _Owner(io.RawIOBase):
    """A decompressing stream that closes the compressed one, which gzip and bz2 leave open."""

    def __init__(self, stream: BinaryIO, owned: BinaryIO):
        self._stream, self._owned = stream, owned

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        return self._stream.readinto(buffer)

    def close(self) -> None:
        self._stream.close()
        self._owned.close()
        super().close()


class _ZstandardReader(io.RawIOBase):
    """A reader of Zstandard frames that, unlike the library's, detects a truncated last frame."""

    def __init__(self, stream: BinaryIO):
        import zstandard

        self._new_frame = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj
        self._failure = zstandard.ZstdError
        self._stream = stream
        self._frame = None
        self._text = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        while not self._text:
            compressed = self._unused_data() or self._stream.read(BUFFER >> 3)
            if not compressed:
                if self._frame is not None and not self._frame.eof:
                    raise EOFError("the last Zstandard frame is truncated")
                return 0
            if self._frame is None or self._frame.eof:
                self._frame = self._new_frame()
            try:
                self._text = self._frame.decompress(compressed)
            except self._failure as error:
                raise ValueError(str(error)) from error
        data = self._text[: len(buffer)]
        buffer[: len(data)] = data
        self._text = self._text[len(data) :]
        return len(data)

    def _unused_data(self) -> bytes:
        return self._frame.unused_data if self._frame is not None and self._frame.eof else b""


def find_urls(pattern: str) -> list[str]:
    """List the URLs of the files that match a glob, sorted.

    Raises:
      UserError: The scheme is not supported, or access is denied.
    """
    client, path = _client(pattern)
    if not glob.has_magic(path):
        found = storage.with_retries(lambda: _find_file(client, path), pattern)
    else:
        found = storage.with_retries(lambda: _glob(client, path), pattern)
    scheme = pattern.partition("://")[0]
    return sorted(f"{scheme}://{name.removeprefix('/')}" for name in found)


def _find_file(client: Any, path: str) -> list[str]:
    """Return the path if it is a file; `isfile` would report failed requests as no file."""
    try:
        return [path] if client.info(path)["type"] == "file" else []
    except FileNotFoundError:
        return []


def _glob(client: Any, path: str) -> list[str]:
    try:
        details = client.glob(path, detail=True)
    except FileNotFoundError:  # of a folder above the files
        return []
    return [name for name, entry in details.items() if entry["type"] == "file"]


def size_and_version(url: str) -> tuple[int, int]:
    """Return the size of a file, and a number that changes with its content."""
    client, path = _client(url)
    details = storage.with_retries(lambda: client.info(path), url)
    versions = [str(details[key]) for key in _VERSION_KEYS if details.get(key)]
    return details["size"], zlib.crc32("".join(versions[:1]).encode())


def _open_url(url: str) -> BinaryIO:
    """Open a file for reading its bytes; the stream can seek."""
    client, path = _client(url)
    return storage.with_retries(lambda: client.open(path, "rb"), url)


def _client(url: str) -> tuple[Any, str]:
    """Return the client of a URL's scheme, and the path for it."""
    scheme = url.partition("://")[0]
    if scheme not in _PACKAGES:
        known = ", ".join(f"{name}://" for name in _PACKAGES)
        raise UserError(
            f"unsupported input: got {url}, expected a local path or one that starts with {known}"
        )
    with contextlib.suppress(ImportError):
        storage.disable_listings_cache()
        storage.check_host(url)
        import fsspec

        return storage.with_retries(lambda: fsspec.core.url_to_fs(url), url)
    raise UserError(f"{url}: {scheme}:// requires a package: pip install '{_PACKAGES[scheme]}'")
