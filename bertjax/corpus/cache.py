"""Cache of tokenizers and corpora that pretraining makes from raw text, by hash of the inputs.

The first run of `pretrain` with raw text as input trains a tokenizer and prepares a corpus; later
runs with the same inputs and settings reuse both. If several runs start at the same time, one makes
them and the others wait.
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
from bertjax.corpus.sources import describe_repeated, find_sources
from bertjax.io import copies, storage
from bertjax.io.files import cache_directory
from bertjax.tokenizers import tokenizer


def get_or_train_tokenizer(
    data: Mapping[str, Any], settings: Mapping[str, Any], log: Callable[[str], None]
) -> pathlib.Path:
    """Return the path of the tokenizer of a run: the given one, a cached one, or a new one.

    Args:
      data: `config.data`.
      settings: `config.tokenizer`; `path` is empty for a tokenizer to be trained on the input.
      log: Called with a line for the user.

    Raises:
      UserError: The given tokenizer does not exist, or the input cannot be read.
    """
    if settings["path"]:
        return copies.local_copy(settings["path"])
    settings = {name: value for name, value in settings.items() if name != "path"}
    key = {"input": _identify(data["input"]), **_layout(data), **settings}
    folder = cache_directory(data["cache"]) / f"tokenizer-{_hash_key(key)}"
    with _lock(folder, log):
        if folder.is_dir():
            log(f"tokenizer: {folder} (cached)")
            return folder
        log(f"tokenizer: training {settings['kind']}, vocabulary of {settings['vocab_size']:,}")
        documents = text.read_documents(data["input"], **_layout(data))
        tokenizer.train(documents, **settings).save(str(folder))
    return folder


def get_or_prepare_corpus(
    data: Mapping[str, Any],
    tokenizer_path: pathlib.Path,
    fingerprint: str,
    log: Callable[[str], None],
    progress: Callable[[Progress], None] | None = None,
) -> pathlib.Path:
    """Return the path of the corpus of a run's raw text: a cached one, or a new one.

    Args:
      data: `config.data`.
      tokenizer_path: The tokenizer's folder or file.
      fingerprint: The tokenizer's fingerprint.
      log: Called with a line for the user.
      progress: Called after every block while a corpus is prepared.

    Raises:
      UserError: The input cannot be read.
    """
    held_out = {
        "validation_inputs": list(data["validation_input"]),
        "validation_fraction": 0.0 if data["validation_input"] else data["validation_fraction"],
    }
    validation = data["validation_input"]
    key = {
        "input": _identify(data["input"]),
        "validation_input": _identify(validation) if validation else [],
        **_layout(data),
        "tokenizer": fingerprint,
        **held_out,
        **_filters(data),
    }
    folder = cache_directory(data["cache"]) / f"corpus-{_hash_key(key)}"
    with _lock(folder, log):
        if (folder / "manifest.json").is_file():
            log(f"corpus: {folder} (cached)")
            return folder
        log(f"corpus: preparing {', '.join(data['input'])}")
        if note := describe_repeated(data["input"]):
            log(note)
        prepare(
            list(data["input"]),
            tokenizer_path,
            folder,
            progress=progress,
            **_layout(data),
            **held_out,
            **_filters(data),
        )
    return folder


def _layout(data: Mapping[str, Any]) -> dict[str, str]:
    """Options of the input's layout; `text_field` only if set, to keep old cache keys valid."""
    field = data.get("text_field", "")
    return {"format": data["text_format"]} | ({"text_field": field} if field else {})


def _filters(data: Mapping[str, Any]) -> dict[str, list[str]]:
    """The filters of the corpus, only if there are any, to keep old cache keys valid."""
    filters = list(data.get("filters", ()))
    return {"filters": filters} if filters else {}


@contextlib.contextmanager
def _lock(folder: pathlib.Path, log: Callable[[str], None]) -> Iterator[None]:
    storage.make_folder(folder.parent)
    with open(folder.with_name(f"{folder.name}.lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log(f"waiting for another run that is writing {folder}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _identify(inputs: tuple[str, ...]) -> list:
    """Identify the content of inputs without reading it: by names, sizes and modification times."""
    files = [(source.name, source.bytes, source.modified) for source in find_sources(inputs)]
    if "python-docs" not in inputs:
        return files
    installed = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
    return [*files, sys.version, sorted(installed.items())]


def _hash_key(key: Mapping[str, Any]) -> str:
    content = json.dumps({**key, "version": bertjax.__version__}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]
