"""Save checkpoints during training, keep the newest and the best, resume from the newest.

One process of a run writes the small files and decides; the others follow it. All of them take
part in writing and reading the arrays.
"""

import concurrent.futures
import contextlib
import copy
import errno
import math
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

import bertjax
from bertjax.errors import UserError
from bertjax.io import storage
from bertjax.io.files import is_disk_full
from bertjax.train.checkpoint import folder as checkpoint_folder
from bertjax.train.checkpoint import restore, trees
from bertjax.train.checkpoint.folder import Keep, Record
from bertjax.train.checkpoint.orbax import array_handler, orbax

_HOUR = 3600
_SMALL_FILES = 1 << 20
_NONE, _REFUSED = -1, -2


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _check_room(folder: pathlib.Path, arrays: Mapping[str, Any]) -> None:
    """Raises the error of a full disk before it comes to that.

    Compression may well make the arrays smaller, but a disk this full is no place to continue with,
    and half-written arrays make orbax print what it raises.
    """
    if storage.is_remote(folder):
        return
    if sum(leaf.nbytes for leaf in arrays.values()) + _SMALL_FILES > shutil.disk_usage(folder).free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


class Checkpoints:
    """The checkpoints of one run, for the process that writes them.

    Close it, or use it as a context manager: the last save is finished then, and what went wrong
    with it is raised.

    Args:
      workdir: the run's folder, on a disk or in a bucket.
      keep: what is kept.
      provenance: fingerprints of what a state depends on, by what it is ("corpus", "tokenizer",
        "config"). A checkpoint with others is refused.
      log: gets one line about every damaged checkpoint that is passed over.
    """

    def __init__(
        self,
        workdir: str | pathlib.Path,
        *,
        keep: Keep | None = None,
        provenance: Mapping[str, str] | None = None,
        log: Callable[[str], None] = _to_stderr,
    ):
        self.directory = storage.absolute(storage.to_path(workdir)) / "checkpoints"
        if str(self.directory).startswith("s3://"):
            raise UserError(
                f"{workdir}: orbax writes no checkpoints into s3://; name a folder on a disk, or "
                "in gs://"
            )
        self._keep = keep or Keep()
        self._provenance = dict(provenance or {})
        self._log = log
        self._decides = jax.process_index() == 0
        self._orbax = None
        self._finisher = concurrent.futures.ThreadPoolExecutor(1, "finish-checkpoint")
        self._finishing: concurrent.futures.Future | None = None
        self._newest: int | None = None

    def save(
        self,
        state: PyTree,
        *,
        step: int,
        metrics: Mapping[str, float] | None = None,
        hooks: Mapping[str, Any] | None = None,
    ) -> None:
        """Begins to save a state; returns as soon as the state may change.

        Waits for the save before it, and raises what went wrong with that one.

        Raises:
          UserError: the disk is full. The last whole checkpoint is named and as it was.
        """
        self.wait()
        if step == self._newest:
            return
        folder = self.directory / str(step)
        if self._decides and folder.exists():
            raise ValueError(f"{folder} is there already: resume from it, or remove it")
        arrays = trees.named(state)
        record = Record(
            step=step,
            arrays=restore.describe(arrays),
            metrics={name: v for name, v in (metrics or {}).items() if math.isfinite(v)},
            provenance=self._provenance,
            hooks=copy.deepcopy(dict(hooks or {})),
            version=bertjax.__version__,
        )
        with self._cleaned_up(folder):
            if self._decides:
                storage.make_folder(folder)
                _check_room(folder, arrays)
            self._begin(folder / checkpoint_folder.STATE, arrays)
        self._newest = step
        self._finishing = self._finisher.submit(self._finish, folder, record)

    def wait(self) -> None:
        """Returns when the last save is on disk; raises what went wrong with it."""
        if self._finishing is not None:
            finishing, self._finishing = self._finishing, None
            finishing.result()

    def close(self) -> None:
        """Waits and lets go of the threads; a second time it does nothing."""
        try:
            self.wait()
        finally:
            self._finisher.shutdown()
            if self._orbax is not None:
                self._orbax.close()
                self._orbax = None

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def resume(self, target: PyTree) -> tuple[PyTree, Record] | None:
        """Reads the newest whole checkpoint, or returns None where there has never been one.

        Checkpoints that are damaged are set aside, with a line that says so.

        Args:
          target: the expected tree; see `restore.load`.

        Raises:
          UserError: there are checkpoints but none is whole, or the newest does not fit this run.
        """
        self.wait()
        step = self._agreed(self._newest_whole)
        if step is None:
            return None
        folder = self.directory / str(step)
        record = checkpoint_folder.read_record(folder)
        self._check_provenance(folder, record)
        self._newest = step
        return restore.load(folder, target), record

    @property
    def is_writing(self) -> bool:
        """Whether the last save is still on its way to the disk."""
        return self._finishing is not None and not self._finishing.done()

    @property
    def latest(self) -> int | None:
        """The newest step that is on disk."""
        return max(checkpoint_folder.steps(self.directory), default=None)

    @property
    def best(self) -> int | None:
        """The step with the best metric, of those on disk."""
        metrics = checkpoint_folder.metrics(self.directory)
        ranks = checkpoint_folder.ranked(metrics, self._keep.metric, self._keep.mode)
        return ranks[0] if ranks else None

    def _begin(self, folder: pathlib.Path, arrays: Mapping[str, Any]) -> None:
        ocp = orbax()
        if self._orbax is None:
            self._orbax = ocp.AsyncCheckpointer(
                array_handler(), async_options=ocp.AsyncOptions(timeout_secs=_HOUR)
            )
        # Orbax refuses arrays without elements; their shape in the record is all there is to them.
        stored = {name: leaf for name, leaf in arrays.items() if leaf.size}
        self._orbax.save(folder, args=ocp.args.PyTreeSave(trees.nested(stored)))

    def _finish(self, folder: pathlib.Path, record: Record) -> None:
        with self._cleaned_up(folder):
            self._orbax.wait_until_finished()
            if self._decides:
                checkpoint_folder.finish(folder, record)
        if self._decides:
            self._drop_superfluous()

    @contextlib.contextmanager
    def _cleaned_up(self, folder: pathlib.Path) -> Iterator[None]:
        """Leaves nothing of a save that fails, and explains a full disk."""
        try:
            yield
        except Exception as error:
            if self._decides:
                checkpoint_folder.clear(folder)
            if not is_disk_full(error):
                raise
            last = self.latest
            last = "no checkpoint is there yet" if last is None else f"the last whole one is {last}"
            raise UserError(
                f"the disk is full: checkpoint {folder.name} could not be saved in "
                f"{self.directory}; {last}; free some space and start the same command to continue"
            ) from error

    def _drop_superfluous(self) -> None:
        found = checkpoint_folder.metrics(self.directory)
        for step in checkpoint_folder.superfluous(found, self._keep):
            checkpoint_folder.remove(self.directory / str(step))

    def _newest_whole(self) -> int | None:
        """Finds the step to resume from, and tidies the folder."""
        checkpoint_folder.sweep(self.directory)
        damaged: dict[int, str] = {}
        whole = None
        for step in reversed(checkpoint_folder.steps(self.directory)):
            reason = checkpoint_folder.defect(self.directory / str(step))
            if reason is None:
                whole = step
                break
            damaged[step] = reason
        if damaged and whole is None:
            reasons = "; ".join(f"{step}: {reason}" for step, reason in damaged.items())
            raise UserError(
                f"no checkpoint in {self.directory} is whole ({reasons}): restore that folder from "
                f"a copy, or remove it to begin again"
            )
        cut_short = dict.fromkeys(checkpoint_folder.unfinished(self.directory), "never finished")
        self._set_aside(damaged | cut_short, whole)
        return whole

    def _set_aside(self, reasons: Mapping[int, str], whole: int | None) -> None:
        going_on = "beginning again" if whole is None else f"continuing from checkpoint {whole}"
        for step, reason in sorted(reasons.items()):
            moved = checkpoint_folder.set_aside(self.directory / str(step))
            self._log(f"checkpoint {step} is damaged ({reason}): moved to {moved}; {going_on}")

    def _agreed(self, decide: Callable[[], int | None]) -> int | None:
        """The first process's decision, on every process."""
        if jax.process_count() == 1:
            return decide()
        from jax.experimental import multihost_utils

        step, refusal = None, None
        if self._decides:
            try:
                step = decide()
            except UserError as error:
                refusal = error
        code = _REFUSED if refusal else _NONE if step is None else step
        code = int(multihost_utils.broadcast_one_to_all(np.int32(code)))
        if code == _REFUSED:
            raise refusal or UserError(f"process 0 found no whole checkpoint in {self.directory}")
        return None if code == _NONE else code

    def _check_provenance(self, folder: pathlib.Path, record: Record) -> None:
        for kind, wanted in self._provenance.items():
            found = record.provenance.get(kind)
            if found != wanted:
                raise UserError(
                    f"{folder} was made with another {kind}: its fingerprint is "
                    f"{(found or 'absent')[:16]}, that of this run is {wanted[:16]}; use the "
                    f"{kind} that it was made with, or another --workdir"
                )
