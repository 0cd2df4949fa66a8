"""Cache of tokenizers and corpora that runs make from raw text, by fingerprint of the inputs.

A newcomer types one line: `pretrain` on a config whose input is text trains the tokenizer and
prepares the corpus on its first start, and finds both again on the next. Of several that start
together one makes them, and the others wait for it.
"""

import contextlib
import fcntl
import hashlib
import importlib.metadata
import json
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import bertjax
from bertjax.corpus import text
from bertjax.corpus.prepare import Progress, prepare
from bertjax.corpus.sources import find_sources, repeated
from bertjax.errors import UserError
from bertjax.io import copies, storage
from bertjax.io.files import cache_directory
from bertjax.tokenizers import tokenizer


def tokenizer_of(
    data: Mapping[str, Any], wanted: Mapping[str, Any], log: Callable[[str], None]
) -> pathlib.Path:
    """The tokenizer that a run names, or one that is trained on its input.

    Args:
      data: `config.data`.
      wanted: `config.tokenizer`.
      log: Gets a line about what is done.
    """
    if wanted["path"]:
        return copies.local_copy(wanted["path"])
    settings = {name: value for name, value in wanted.items() if name != "path"}
    made_of = {"input": _identity(data["input"]), **_layout(data), **settings}
    folder = cache_directory(data["cache"]) / f"tokenizer-{_digest(made_of)}"
    with _one_at_a_time(folder, log):
        if folder.is_dir():
            log(f"tokenizer: {folder} (made by an earlier start)")
            return folder
        log(f"tokenizer: training {settings['kind']}, {settings['vocab_size']:,} pieces")
        documents = text.documents(data["input"], **_layout(data))
        tokenizer.train(documents, **settings).save(str(folder))
    return folder


def corpus_of(
    data: Mapping[str, Any],
    tokenizer_path: pathlib.Path,
    fingerprint: str,
    log: Callable[[str], None],
    progress: Callable[[Progress], None] | None = None,
) -> pathlib.Path:
    """The corpus that a run names, or one that is prepared of its input.

    Args:
      data: `config.data`.
      tokenizer_path: Where the tokenizer lies.
      fingerprint: The tokenizer's.
      log: Gets a line about what is done.
      progress: Called while text is prepared.
    """
    if data["corpus"] and data.get("text_field"):
        raise UserError(
            f"config.data.text_field={data['text_field']!r} is of raw text, and config.data.corpus "
            "is prepared already; leave one of them out"
        )
    if data["corpus"]:
        return copies.local_copy(data["corpus"])
    held_out = {
        "validation_inputs": list(data["validation_input"]),
        "validation_fraction": 0.0 if data["validation_input"] else data["validation_fraction"],
    }
    made_of = {
        "input": _identity(data["input"]),
        "validation_input": _identity(data["validation_input"]) if data["validation_input"] else [],
        **_layout(data),
        "tokenizer": fingerprint,
        **held_out,
    }
    folder = cache_directory(data["cache"]) / f"corpus-{_digest(made_of)}"
    with _one_at_a_time(folder, log):
        if (folder / "manifest.json").is_file():
            log(f"corpus: {folder} (made by an earlier start)")
            return folder
        log(f"corpus: preparing {', '.join(data['input'])}")
        if note := repeated(data["input"]):
            log(note)
        prepare(
            list(data["input"]),
            tokenizer_path,
            folder,
            progress=progress,
            **_layout(data),
            **held_out,
        )
    return folder


def _layout(data: Mapping[str, Any]) -> dict[str, str]:
    """How the text of files is found; without a field of its own it names none, as it once did."""
    field = data.get("text_field", "")
    return {"format": data["text_format"]} | ({"text_field": field} if field else {})


@contextlib.contextmanager
def _one_at_a_time(folder: pathlib.Path, log: Callable[[str], None]) -> Iterator[None]:
    storage.make_folder(folder.parent)
    with open(folder.with_name(f"{folder.name}.lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log(f"waiting for another run that is making {folder}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _identity(inputs: tuple[str, ...]) -> list:
    """What tells these inputs from others without reading them."""
    files = [(source.name, source.bytes, source.modified) for source in find_sources(inputs)]
    if "python-docs" not in inputs:
        return files
    installed = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
    return [*files, sys.version, sorted(installed.items())]


def _digest(made_of: Mapping[str, Any]) -> str:
    content = json.dumps({**made_of, "version": bertjax.__version__}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]
