"""Save tokenizer folders atomically, and verify their checksums when they are loaded."""

import hashlib
import json
import pathlib
from typing import Any

from bertjax.errors import UserError
from bertjax.interfaces import Tokenizer
from bertjax.io import copies, storage
from bertjax.io.files import write_atomic, write_json

METADATA = "bertjax_tokenizer.json"
_FORMAT = 1


def write_folder(
    directory: str, files: dict[str, bytes], *, main: str, tokenizer: Tokenizer
) -> None:
    """Writes the files of a tokenizer and their checksums, atomically.

    A folder that contains the same tokenizer is left unchanged.

    Args:
      directory: A new or empty folder, or one that contains the same tokenizer.
      files: File name to content.
      main: The file that alone defines the tokenizer.
      tokenizer: Its `kind`, `vocab_size` and `fingerprint` are recorded.

    Raises:
      UserError: the directory contains another tokenizer or other files.
    """
    target = pathlib.Path(directory)
    if saved_fingerprint(target) == tokenizer.fingerprint:
        return
    check_target(target)
    description = {
        "format": _FORMAT,
        "kind": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "fingerprint": tokenizer.fingerprint,
        "main": main,
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    with copies.new_folder(target, METADATA) as folder:
        for name, content in files.items():
            write_atomic(folder / name, content)
        write_json(folder / METADATA, description)


def saved_fingerprint(directory: pathlib.Path) -> str | None:
    """Returns the fingerprint of the tokenizer saved in a folder; None if there is none."""
    if not (directory / METADATA).is_file():
        return None
    return _description(directory)["fingerprint"]


def check_target(directory: pathlib.Path) -> None:
    """Checks that a tokenizer can be saved to a folder, and creates its parents.

    Raises:
      UserError: the folder exists and is not empty, or cannot be created.
    """
    if directory.is_dir() and not any(directory.iterdir()):
        return
    if (directory / METADATA).is_file():
        raise UserError(
            f"{directory} contains another tokenizer; pass another folder, or delete this one first"
        )
    if directory.exists():
        raise UserError(
            f"{directory} exists and is not a tokenizer folder; pass a new or empty folder"
        )
    storage.check_folder(directory)


def verify_folder(directory: pathlib.Path) -> pathlib.Path:
    """Verifies the checksums of a saved tokenizer, and returns the file that defines it.

    Raises:
      UserError: a file is missing, or its content does not match its checksum.
    """
    description = _description(directory)
    for name, digest in description["files"].items():
        path = directory / name
        if not path.is_file():
            raise UserError(f"{path} is missing; train the tokenizer again or restore the file")
        if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise UserError(
                f"{path} does not match its checksum; restore it, or remove "
                f"{directory / METADATA} to load the folder as a released tokenizer"
            )
    return directory / description["main"]


def _description(directory: pathlib.Path) -> dict[str, Any]:
    path = directory / METADATA
    try:
        description = json.loads(path.read_bytes())
        known = description["format"] == _FORMAT
        complete = known and {"files", "main", "fingerprint"} <= description.keys()
    except (ValueError, KeyError, TypeError, AttributeError):
        complete = False
    if not complete:
        raise UserError(
            f"{path} is corrupt or of another version of bertjax; train the tokenizer again"
        )
    return description
