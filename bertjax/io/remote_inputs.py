"""Find and open input files by URL: gs://, s3://, and hf:// of the Hugging Face Hub.

Files are read in blocks by the fsspec client of the scheme, not copied. Only inputs may be on the
Hub; runs and corpora are written by `io/storage.py`.
"""

import contextlib
import glob
import zlib
from typing import Any, BinaryIO

from bertjax.errors import UserError
from bertjax.io import storage

_PACKAGES = {"gs": "bertjax[gcs]", "s3": "bertjax[s3]", "hf": "huggingface_hub"}

_VERSION_KEYS = ("generation", "ETag", "blob_id")
"""Keys of the version of a file's content in the listings of gs://, s3:// and hf:// clients."""


def find_files(pattern: str) -> list[str]:
    """List the URLs of the files that match a glob, sorted.

    Raises:
      UserError: The scheme is not supported, or access is denied.
    """
    client, path = _client(pattern)
    if not glob.has_magic(path):
        found = [path] if storage.with_retries(lambda: client.isfile(path), pattern) else []
    else:
        found = storage.with_retries(lambda: _glob(client, path), pattern)
    scheme = pattern.partition("://")[0]
    return sorted(f"{scheme}://{name.removeprefix('/')}" for name in found)


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


def open_file(url: str) -> BinaryIO:
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
        import fsspec

        return storage.with_retries(lambda: fsspec.core.url_to_fs(url), url)
    raise UserError(f"{url}: {scheme}:// requires a package: pip install '{_PACKAGES[scheme]}'")
