"""Write the folder of a corpus: its lock, the state to resume from, the final manifest.

`progress.json` is written after every shard, `manifest.json` after all other files.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.corpus.encoding import id_dtype
from bertjax.corpus.reader import FORMAT, UNFINISHED, content_fingerprint, hash_file, read_manifest
from bertjax.corpus.reading import Stream
from bertjax.corpus.shards import (
    SHARD_SUFFIX,
    START,
    SplitState,
    disk_errors,
    merge_shard_arrays,
    shard_name,
    write_array,
)
from bertjax.corpus.sources import Source
from bertjax.errors import UserError
from bertjax.interfaces import Tokenizer
from bertjax.io import storage
from bertjax.io.files import write_atomic

_TOTALS = ("documents", "records", "sentences", "tokens", "characters")


class CorpusWriter:
    """A context manager that locks the folder of a corpus, resumes it and completes it.

    Attributes:
      path: The corpus's folder.
      folder: The folder of finished shards while the corpus is incomplete.
      manifest: The manifest if the corpus is complete, else None.
      states: Finished shards of each split.

    Args:
      path: The corpus's folder.
      recipe: All options that determine the content of the corpus.
      streams: The inputs and their splits.
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
        self._recipe = json.loads(json.dumps(recipe))  # as it is read from JSON: without tuples
        self._streams = streams

    def __enter__(self) -> "CorpusWriter":
        """Lock the folder and read the state that an earlier process left in it.

        Raises:
          UserError: The folder has another corpus or other files, or is locked by another process.
        """
        with disk_errors(self.path):
            storage.make_folder(self.path)
        self._lock = os.open(self.path, os.O_RDONLY)
        try:
            self._load_state()
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def __exit__(self, *_) -> None:
        if self.manifest is None and not any(state.shards for state in self.states.values()):
            shutil.rmtree(self.folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                self.path.rmdir()  # only if it is empty
        os.close(self._lock)

    def _load_state(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(
                f"{self.path} is locked by another `bertjax prepare`; wait until it ends"
            ) from None
        if (self.path / "manifest.json").is_file():
            self.manifest = self._read_finished()
            shutil.rmtree(self.folder, ignore_errors=True)
        elif not self.folder.is_dir() and any(self.path.iterdir()):
            raise UserError(
                f"{self.path}: got a folder with other files, expected an empty one or a corpus; "
                "give another --output"
            )
        else:
            self.folder.mkdir(exist_ok=True)
            self._resume()

    def _read_finished(self) -> dict[str, Any]:
        manifest = read_manifest(self.path)
        self._check_recipe(manifest["source"], self._recipe | {"files": self._files()})
        return manifest

    def _resume(self) -> None:
        """Resume from the finished shards; delete unfinished files."""
        try:
            progress = json.loads((self.folder / "progress.json").read_bytes())
        except FileNotFoundError:
            progress = {"states": {}}
        states = {name: SplitState.from_json(state) for name, state in progress["states"].items()}
        kept: set[str] = {"progress.json"}
        if any(state.shards for state in states.values()):
            self._check_recipe(progress["recipe"], self._recipe)
            self.states = states
            self._check_sources(progress["sources"])
            kept |= self._finished_files()
        for path in self.folder.iterdir():
            if path.name not in kept and path.is_file():
                path.unlink()

    def _check_recipe(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        for name in new:
            if old.get(name) != new[name]:
                raise UserError(
                    f"{self.path} was started with other options: {name}: got "
                    f"{_shorten(new[name])}, expected {_shorten(old.get(name))}; give the same "
                    "options, another --output, or delete the folder"
                )

    def _check_sources(self, before: list[list]) -> None:
        """Check that the sources that have been read are unchanged; others may differ."""
        for stream, old in zip(self._streams, before, strict=True):
            read = max(self.states[split].position.source for split in stream.splits)
            new = _rows(stream.sources)
            for was, now in zip(old[:read], [*new, *[None] * read], strict=False):
                if was != now:
                    raise UserError(
                        f"{was[0]} was changed, moved or reordered since {self.path} was started; "
                        "restore it, or delete the folder and run the command again"
                    )

    def _finished_files(self) -> set[str]:
        """Names of the files of finished shards.

        Raises:
          UserError: One of them is missing or has another size.
        """
        names: set[str] = set()
        for split, state in self.states.items():
            for number, shard in enumerate(state.shards):
                name = shard_name(split, number)
                final = self.path / final_shard_name(split, number, len(state.shards))
                path = self.folder / name if (self.folder / name).is_file() else final
                if not path.is_file() or path.stat().st_size != shard["bytes"]:
                    raise UserError(
                        f"{path} is missing or damaged; delete {self.path} and start again"
                    )
                names |= {name, *(f"{name}.{kind}.npy" for kind in ("index", "counts", "keys"))}
        return names

    def read_keys(self) -> Iterator[int]:
        """Yield the keys of all documents in finished shards; see `filters.DocumentFilter`."""
        for split, state in self.states.items():
            for number in range(len(state.shards)):
                path = self.folder / f"{shard_name(split, number)}.keys.npy"
                yield from np.load(path).tolist()

    def save(self) -> None:
        """Save `states` and the recipe, from which the next process resumes."""
        progress = {
            "recipe": self._recipe,
            "sources": [_rows(stream.sources) for stream in self._streams],
            "states": {split: state.to_json() for split, state in self.states.items()},
        }
        write_atomic(self.folder / "progress.json", json.dumps(progress).encode())

    def finish(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """Move all files to their final names and write the manifest; can be repeated."""
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
        arrays = merge_shard_arrays(self.folder, split, count, tokenizer.vocab_size)
        files = {}
        for kind, array in zip(("index", "counts"), arrays, strict=True):
            file = f"{split}.{kind}.npy"
            write_array(self.path / file, array)
            files[kind] = {"file": file, "sha256": hash_file(self.path / file)}
        shards = []
        for number, shard in enumerate(state.shards):
            final = final_shard_name(split, number, count)
            with contextlib.suppress(FileNotFoundError):  # an earlier process has moved it
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


def final_shard_name(split: str, number: int, count: int) -> str:
    """Return the name of a shard in a complete corpus."""
    return f"{split}-{number:05d}-of-{count:05d}{SHARD_SUFFIX}"


def _shorten(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
