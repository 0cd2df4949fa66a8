"""Save checkpoints during training, keep the newest and the best, resume from the newest.

Process 0 of a run writes the metadata and chooses the step to resume from; all processes write and
read the arrays.
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
from types import MappingProxyType
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
from bertjax.train.checkpoint.folder import Record, Retention
from bertjax.train.checkpoint.restore import array_handler, orbax

_HOUR = 3600
_SMALL_FILES = 1 << 20
_NONE, _REFUSED = -1, -2


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _check_disk_space(folder: pathlib.Path, arrays: Mapping[str, Any]) -> None:
    """Raises the error of a full disk before anything is written.

    Compressed arrays might still fit, but then the disk would be full soon, and a partial write
    makes Orbax print its errors.
    """
    if storage.is_remote(folder):
        return
    if sum(leaf.nbytes for leaf in arrays.values()) + _SMALL_FILES > shutil.disk_usage(folder).free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


class Checkpoints:
    """The checkpoints of one run: saves them in the background and resumes from them.

    Close it, or use it as a context manager: this waits for the last save and raises its errors.

    Args:
      workdir: The run's folder, on a disk or in a bucket.
      keep: Which checkpoints to keep.
      provenance: Fingerprints of the "corpus", "tokenizer" and "config" of the run. A checkpoint
        with others is refused.
      former_provenance: Fingerprints that earlier versions recorded for the same run, by kind; a
        checkpoint with one of these is accepted too.
      log: Called with one line for every damaged checkpoint that is skipped.
    """

    def __init__(
        self,
        workdir: str | pathlib.Path,
        *,
        keep: Retention | None = None,
        provenance: Mapping[str, str] | None = None,
        former_provenance: Mapping[str, str] = MappingProxyType({}),
        log: Callable[[str], None] = _to_stderr,
    ):
        self.directory = storage.absolute(storage.to_path(workdir)) / "checkpoints"
        if str(self.directory).startswith("s3://"):
            raise UserError(
                f"{workdir}: Orbax cannot write checkpoints to s3://; pass a folder on a disk "
                "or in gs://"
            )
        self._keep = keep or Retention()
        self._provenance = dict(provenance or {})
        self._former_provenance = dict(former_provenance)
        self._log = log
        self._is_main = jax.process_index() == 0
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
        """Saves a state asynchronously; returns as soon as its memory may be reused.

        Waits for the previous save first and raises its errors. Of the newest checkpoint only the
        metrics and hook states are replaced.

        Raises:
          UserError: the disk is full; earlier checkpoints are unchanged.
        """
        self.wait()
        folder = self.directory / str(step)
        if self._is_main and step != self._newest and folder.exists():
            raise ValueError(f"{folder} already exists: resume from it, or remove it")
        arrays = trees.flatten_names(state)
        record = Record(
            step=step,
            arrays=restore.describe(arrays),
            metrics={name: v for name, v in (metrics or {}).items() if math.isfinite(v)},
            provenance=self._provenance,
            hooks=copy.deepcopy(dict(hooks or {})),
            version=bertjax.__version__,
        )
        if step == self._newest:
            if self._is_main:
                checkpoint_folder.amend(folder, record)
                self._remove_old()
            return
        with self._clean_up_on_error(folder):
            if self._is_main:
                storage.make_folder(folder)
                _check_disk_space(folder, arrays)
            self._start_writing(folder / checkpoint_folder.STATE, arrays)
        self._newest = step
        self._finishing = self._finisher.submit(self._finish, folder, record)

    def wait(self) -> None:
        """Waits until the last save is on disk; raises its errors."""
        if self._finishing is not None:
            finishing, self._finishing = self._finishing, None
            finishing.result()

    def close(self) -> None:
        """Waits for the last save and stops the threads; idempotent."""
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
        """Restores the newest complete checkpoint, or returns None if there is none.

        Damaged checkpoints are renamed and logged.

        Args:
          target: The expected tree; see `restore.load`.

        Raises:
          UserError: all checkpoints are damaged, or the newest is of another run.
        """
        self.wait()
        step = self._broadcast_decision(self._newest_intact)
        if step is None:
            return None
        folder = self.directory / str(step)
        record = checkpoint_folder.read_record(folder)
        self._check_provenance(folder, record)
        self._newest = step
        return restore.load(folder, target), record

    @property
    def is_writing(self) -> bool:
        """Whether the last save is still being written."""
        return self._finishing is not None and not self._finishing.done()

    @property
    def latest(self) -> int | None:
        """The newest step on disk, or None."""
        return max(checkpoint_folder.steps(self.directory), default=None)

    @property
    def best(self) -> int | None:
        """The step on disk with the best metric, or None."""
        metrics = checkpoint_folder.metrics(self.directory)
        ranks = checkpoint_folder.rank_steps(metrics, self._keep.metric, self._keep.mode)
        return ranks[0] if ranks else None

    def _start_writing(self, folder: pathlib.Path, arrays: Mapping[str, Any]) -> None:
        ocp = orbax()
        if self._orbax is None:
            self._orbax = ocp.AsyncCheckpointer(
                array_handler(), async_options=ocp.AsyncOptions(timeout_secs=_HOUR)
            )
        # Orbax rejects arrays without elements; their shapes are in the record.
        stored = {name: leaf for name, leaf in arrays.items() if leaf.size}
        self._orbax.save(folder, args=ocp.args.PyTreeSave(trees.nest(stored)))

    def _finish(self, folder: pathlib.Path, record: Record) -> None:
        with self._clean_up_on_error(folder):
            self._orbax.wait_until_finished()
            if self._is_main:
                checkpoint_folder.finish(folder, record)
        if self._is_main:
            self._remove_old()

    @contextlib.contextmanager
    def _clean_up_on_error(self, folder: pathlib.Path) -> Iterator[None]:
        """Removes a failed save, and turns a full disk into a `UserError`."""
        try:
            yield
        except Exception as error:
            if self._is_main:
                checkpoint_folder.clear(folder)
            if not is_disk_full(error):
                raise
            last = self.latest
            last = "there is no checkpoint yet" if last is None else f"the last one is {last}"
            raise UserError(
                f"the disk is full: checkpoint {folder.name} could not be saved in "
                f"{self.directory}; {last}; free some space and run the same command to resume"
            ) from error

    def _remove_old(self) -> None:
        found = checkpoint_folder.metrics(self.directory)
        for step in checkpoint_folder.steps_to_remove(found, self._keep):
            checkpoint_folder.remove(self.directory / str(step))

    def _newest_intact(self) -> int | None:
        """Finds the step to resume from; renames damaged checkpoints and removes leftovers."""
        checkpoint_folder.remove_leftovers(self.directory)
        damaged: dict[int, str] = {}
        intact = None
        for step in reversed(checkpoint_folder.steps(self.directory)):
            reason = checkpoint_folder.find_defect(self.directory / str(step))
            if reason is None:
                intact = step
                break
            damaged[step] = reason
        if damaged and intact is None:
            reasons = "; ".join(f"{step}: {reason}" for step, reason in damaged.items())
            raise UserError(
                f"all checkpoints in {self.directory} are damaged ({reasons}): restore that folder "
                f"from a copy, or remove it to start from step 0"
            )
        incomplete = checkpoint_folder.incomplete_steps(self.directory)
        self._set_aside(damaged | dict.fromkeys(incomplete, "never finished"), intact)
        return intact

    def _set_aside(self, reasons: Mapping[int, str], intact: int | None) -> None:
        resumed = "starting from step 0" if intact is None else f"resuming from checkpoint {intact}"
        for step, reason in sorted(reasons.items()):
            moved = checkpoint_folder.set_aside(self.directory / str(step))
            self._log(f"checkpoint {step} is damaged ({reason}): moved to {moved}; {resumed}")

    def _broadcast_decision(self, decide: Callable[[], int | None]) -> int | None:
        """Broadcasts the decision of process 0 to all processes."""
        if jax.process_count() == 1:
            return decide()
        from jax.experimental import multihost_utils

        step, refusal = None, None
        if self._is_main:
            try:
                step = decide()
            except UserError as error:
                refusal = error
        code = _REFUSED if refusal else _NONE if step is None else step
        code = int(multihost_utils.broadcast_one_to_all(np.int32(code)))
        if code == _REFUSED:
            damaged = f"process 0: all checkpoints in {self.directory} are damaged"
            raise refusal or UserError(damaged)
        return None if code == _NONE else code

    def _check_provenance(self, folder: pathlib.Path, record: Record) -> None:
        for kind, expected in self._provenance.items():
            found = record.provenance.get(kind)
            if found not in (expected, self._former_provenance.get(kind, expected)):
                raise UserError(
                    f"{folder} was written with another {kind}: got fingerprint "
                    f"{(found or 'absent')[:16]}, expected {expected[:16]} of this run; use the "
                    f"{kind} of the checkpoint, or another --workdir"
                )
