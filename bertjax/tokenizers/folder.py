"""Write the folder of a tokenizer atomically, and verify it when it is read."""

import hashlib
import json
import pathlib
import shutil
import uuid
from typing import Any

from bertjax.errors import UserError
from bertjax.io import storage

METADATA = "bertjax_tokenizer.json"
_FORMAT = 1


def write_folder(directory: str, files: dict[str, bytes], *, main: str, tokenizer: Any) -> None:
    """Writes files and a description of them, all or nothing.

    A folder that holds the same tokenizer already is left as it is.

    Args:
      directory: where to; absent or empty, or the same tokenizer's.
      files: name to content.
      main: which file alone decides what the tokenizer does.
      tokenizer: has the `kind`, `vocab_size` and `fingerprint` to be described.

    Raises:
      UserError: the directory holds another tokenizer or anything else.
    """
    target = pathlib.Path(directory)
    if occupant(target) == tokenizer.fingerprint:
        return
    refuse_occupied(target)
    description = {
        "format": _FORMAT,
        "kind": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "fingerprint": tokenizer.fingerprint,
        "main": main,
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    unfinished = target.with_name(f".{target.name}.unfinished-{uuid.uuid4().hex}")
    try:
        unfinished.mkdir()
        for name, content in files.items():
            (unfinished / name).write_bytes(content)
        (unfinished / METADATA).write_text(json.dumps(description, indent=2) + "\n")
        unfinished.replace(target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def occupant(directory: pathlib.Path) -> str | None:
    """The fingerprint of the tokenizer that a folder holds; None if it holds none of ours."""
    if not (directory / METADATA).is_file():
        return None
    return _description(directory)["fingerprint"]


def refuse_occupied(directory: pathlib.Path) -> None:
    """Raises a UserError unless a tokenizer can be put there: nothing there, or an empty folder.

    The folders above it are made.
    """
    if directory.is_dir() and not any(directory.iterdir()):
        return
    if (directory / METADATA).is_file():
        raise UserError(
            f"{directory} holds another tokenizer; name another folder, or delete this one first"
        )
    if directory.exists():
        raise UserError(
            f"{directory} exists and is no tokenizer's folder; name a new or an empty one"
        )
    storage.check_folder(directory)


def main_file(directory: pathlib.Path) -> pathlib.Path:
    """The file of a folder of ours that holds the tokenizer, after checking all of its files.

    Raises:
      UserError: a file is missing or was changed.
    """
    description = _description(directory)
    for name, digest in description["files"].items():
        path = directory / name
        if not path.is_file():
            raise UserError(f"{path} is missing; make the tokenizer anew or restore the file")
        if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise UserError(
                f"{path} was changed after it was saved: restore it, or remove "
                f"{directory / METADATA} to have the folder read as released files are"
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
            f"{path} is damaged or written by another version of bertjax; make the tokenizer anew"
        )
    return description
