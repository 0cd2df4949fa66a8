"""Write a corpus: unfinished shards, the lock on its folder, the final manifest.

`progress.json` is written after every shard; `manifest.json` is the last file of all.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from bertjax.corpus.encoding import id_dtype
from bertjax.corpus.reader import FORMAT, UNFINISHED, content_fingerprint, hash_file, read_manifest
from bertjax.corpus.reading import Stream
from bertjax.corpus.shards import (
    SHARD,
    START,
    SplitState,
    disk_errors,
    shard_arrays,
    shard_name,
    write_array,
)
from bertjax.corpus.sources import Source
from bertjax.errors import UserError
from bertjax.io import storage
from bertjax.io.files import write_atomic

_TOTALS = ("documents", "records", "sentences", "tokens", "characters")


class Tokenizer(Protocol):
    """The part of a tokenizer that is needed here."""

    kind: str
    vocab_size: int
    fingerprint: str

    def save(self, directory: str) -> None: ...


class CorpusWriter:
    """The folder of a corpus while it is made; a context manager that holds a lock on it.

    Attributes:
      path: The corpus's folder.
      folder: Where unfinished shards lie.
      manifest: Not None if the corpus is finished already.
      states: What of each split is on disk.

    Args:
      path: The corpus's folder.
      recipe: All that was asked for and determines the corpus's content.
      streams: The input and the splits that it becomes.
    """

    def __init__(
        self,
        path: pathlib.Path,
        recipe: Mapping[str, Any],
        streams: Sequence[Stream],
    ):
        self.path, self.folder = path, path / UNFINISHED
        self.manifest: dict[str, Any] | None = None
        self.states = {split: SplitState(START) for stream in streams for split in stream.splits}
        self._recipe = json.loads(json.dumps(recipe))  # as it will be read again: no tuples
        self._streams = streams

    def __enter__(self) -> "CorpusWriter":
        """Locks the folder and finds out what an earlier process left in it.

        Raises:
          UserError: it holds another corpus or something else, or another process writes it.
        """
        with disk_errors(self.path):
            storage.make_folder(self.path)
        self._lock = os.open(self.path, os.O_RDONLY)
        try:
            self._take_over()
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def __exit__(self, *_) -> None:
        if self.manifest is None and not any(state.shards for state in self.states.values()):
            shutil.rmtree(self.folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                self.path.rmdir()  # only if nothing else lies there
        os.close(self._lock)

    def _take_over(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(
                f"another `bertjax prepare` is writing {self.path}; wait for it"
            ) from None
        if (self.path / "manifest.json").is_file():
            self.manifest = self._finished()
            shutil.rmtree(self.folder, ignore_errors=True)
        elif not self.folder.is_dir() and any(self.path.iterdir()):
            raise UserError(f"{self.path} is not empty and holds no corpus; give another folder")
        else:
            self.folder.mkdir(exist_ok=True)
            self._resume()

    def _finished(self) -> dict[str, Any]:
        manifest = read_manifest(self.path)
        self._compare(manifest["source"], self._recipe | {"files": self._files()})
        return manifest

    def _resume(self) -> None:
        """Takes over what is finished; what is not is thrown away."""
        try:
            progress = json.loads((self.folder / "progress.json").read_bytes())
        except FileNotFoundError:
            progress = {"states": {}}
        found = {name: SplitState.from_json(state) for name, state in progress["states"].items()}
        kept: set[str] = {"progress.json"}
        if any(state.shards for state in found.values()):
            self._compare(progress["recipe"], self._recipe)
            self.states = found
            self._compare_sources(progress["sources"])
            kept |= self._finished_files()
        for path in self.folder.iterdir():
            if path.name not in kept and path.is_file():
                path.unlink()

    def _compare(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        for name in new:
            if old.get(name) != new[name]:
                raise UserError(
                    f"{self.path} was begun with other options: {name} was "
                    f"{_short(old.get(name))}, now it is {_short(new[name])}; "
                    "give the same ones, another --out, or delete the folder"
                )

    def _compare_sources(self, before: list[list]) -> None:
        """What has been read of the input must be as it was; the rest may have changed."""
        for stream, old in zip(self._streams, before, strict=True):
            read = max(self.states[split].position.source for split in stream.splits)
            new = _rows(stream.sources)
            for was, now in zip(old[:read], [*new, *[None] * read], strict=False):
                if was != now:
                    raise UserError(
                        f"{was[0]} has changed, moved or is no longer the same in order since "
                        f"{self.path} was begun; restore it, or delete the folder and start again"
                    )

    def _finished_files(self) -> set[str]:
        """The names of what earlier processes finished.

        Raises:
          UserError: some of it is gone.
        """
        names: set[str] = set()
        for split, state in self.states.items():
            for number, shard in enumerate(state.shards):
                name = shard_name(split, number)
                final = self.path / final_name(split, number, len(state.shards))
                path = self.folder / name if (self.folder / name).is_file() else final
                if not path.is_file() or path.stat().st_size != shard["bytes"]:
                    raise UserError(
                        f"{path} is gone or damaged; delete {self.path} and start again"
                    )
                names |= {name, *(f"{name}.{kind}.npy" for kind in ("index", "counts"))}
        return names

    def save(self) -> None:
        """Makes what `states` say last: the next process continues from there."""
        progress = {
            "recipe": self._recipe,
            "sources": [_rows(stream.sources) for stream in self._streams],
            "states": {split: state.to_json() for split, state in self.states.items()},
        }
        write_atomic(self.folder / "progress.json", json.dumps(progress).encode())

    def finish(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """Gives everything its name and writes the manifest; may be stopped and called again."""
        splits = {split: self._finish_split(split, tokenizer) for split in self.states}
        self._save_tokenizer(tokenizer)
        manifest = {
            "format": FORMAT,
            "dtype": id_dtype(tokenizer.vocab_size).str,
            "tokenizer": {
                "fingerprint": tokenizer.fingerprint,
                "kind": tokenizer.kind,
                "vocab_size": tokenizer.vocab_size,
            },
            "splits": splits,
            "dropped": dict(sum((state.dropped for state in self.states.values()), Counter())),
            "replaced": sum(state.totals["replaced"] for state in self.states.values()),
            "source": self._recipe | {"files": self._files()},
        }
        manifest["fingerprint"] = content_fingerprint(manifest)
        write_atomic(self.path / "manifest.json", json.dumps(manifest, indent=1).encode())
        self.manifest = manifest
        shutil.rmtree(self.folder)
        return manifest

    def _finish_split(self, split: str, tokenizer: Tokenizer) -> dict[str, Any]:
        state = self.states[split]
        count = len(state.shards)
        arrays = shard_arrays(self.folder, split, count, tokenizer.vocab_size)
        files = {}
        for kind, array in zip(("index", "counts"), arrays, strict=True):
            file = f"{split}.{kind}.npy"
            write_array(self.path / file, array)
            files[kind] = {"file": file, "sha256": hash_file(self.path / file)}
        shards = []
        for number, shard in enumerate(state.shards):
            final = final_name(split, number, count)
            with contextlib.suppress(FileNotFoundError):  # an earlier process came as far
                os.replace(self.folder / shard_name(split, number), self.path / final)
            shards.append({"file": final, **shard})
        return {**{name: state.totals[name] for name in _TOTALS}, "shards": shards, **files}

    def _save_tokenizer(self, tokenizer: Tokenizer) -> None:
        temporary = self.folder / "tokenizer"
        for folder in (temporary, self.path / "tokenizer"):
            shutil.rmtree(folder, ignore_errors=True)
        tokenizer.save(str(temporary))
        os.replace(temporary, self.path / "tokenizer")

    def _files(self) -> list[dict[str, Any]]:
        sources = [source for stream in self._streams for source in stream.sources]
        return [{"name": source.name, "bytes": source.bytes} for source in sources]


def _rows(sources: Sequence[Source]) -> list[list]:
    return [list(dataclasses.astuple(source)) for source in sources]


def final_name(split: str, number: int, count: int) -> str:
    """What a shard is called once it is known how many there are."""
    return f"{split}-{number:05d}-of-{count:05d}{SHARD}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
