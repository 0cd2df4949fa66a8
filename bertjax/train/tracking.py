"""Send metrics to experiment trackers: `config.trackers` names files of `train/trackers/`.

A tracker is a hook that uses the package of an extra, imported when training begins. The id
of its run is part of checkpoints, so that a resumed run continues the same run of the tracker.
A failure after the start is logged and does not end training, whose metrics are in `metrics.jsonl`.
"""

import importlib.util
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from bertjax import catalog
from bertjax.constraints import OneOf
from bertjax.train.hooks import Hook, Run, Values

_FOLDER = "train/trackers"
_SEED = "seed_"

PROJECT = "bertjax"
"""Project or experiment, unless an environment variable of the tracker names another one."""


class TrackerName:
    """A file of `train/trackers/` whose package is installed; its extra has the same name."""

    def violation(self, value: Any) -> str | None:
        unknown = OneOf(catalog.names(_FOLDER)).violation(value)
        if unknown is not None or importlib.util.find_spec(value) is not None:
            return unknown
        return f"expected a tracker whose package is installed (pip install 'bertjax[{value}]')"


class Tracker(Hook):
    """Base class of trackers, which record on the first host only.

    Args:
      workdir: Folder of the run, or of a seed of a fine-tuning.
      fields: Values of the config by dotted name.
    """

    def __init__(self, workdir: pathlib.Path, fields: Mapping[str, Any]):
        self.workdir, self.fields = workdir, fields
        self._id, self._failed = "", False

    @property
    def name(self) -> str:
        """The key of the hook's state in a checkpoint: the name of its file."""
        return type(self).__module__.rpartition(".")[2]

    @property
    def run_name(self) -> str:
        """The name of the folder; of a seed also that of its run, as in `rte/seed_0`."""
        parts = self.workdir.absolute().parts
        return "/".join(parts[-2:] if parts[-1].startswith(_SEED) else parts[-1:])

    def on_train_begin(self, run: Run, state: Any, restored: Mapping[str, Any]) -> None:
        if jax.process_index() == 0:
            self._id = self.open(restored.get("id", ""))

    def on_record(self, step: int, values: Values) -> None:
        self._send(lambda: self.record(step, values))

    def state_dict(self) -> dict[str, Any]:
        """Returns the id of the tracker's run."""
        return {"id": self._id} if self._id else {}

    def close(self) -> None:
        self._send(self.end)

    def _send(self, request: Callable[[], None]) -> None:
        """Sends a request, unless one has failed: each may take minutes to fail."""
        if not self._id or self._failed:
            return
        try:
            request()
        except Exception as error:  # each package has its own errors
            self._failed = True
            reason = (str(error).splitlines() or [""])[0] or type(error).__name__
            print(
                f"warning: config.trackers: {self.name}: {reason}; nothing more is sent until the "
                "run is resumed; metrics.jsonl has all metrics",
                file=sys.stderr,
                flush=True,
            )

    def open(self, run_id: str) -> str:
        """Starts the tracker's run, or continues the one with this id; returns its id.

        Raises:
          UserError: the tracker cannot be used, for instance without its credentials.
        """
        raise NotImplementedError

    def record(self, step: int, values: Values) -> None:
        """Sends the metrics of a step."""
        raise NotImplementedError

    def end(self) -> None:
        """Ends the tracker's run."""
        raise NotImplementedError


def make(names: Sequence[str], workdir: pathlib.Path, fields: Mapping[str, Any]) -> list[Tracker]:
    """The trackers of a run.

    Args:
      names: Files of `train/trackers/`.
      workdir: Folder of the run, or of a seed of a fine-tuning.
      fields: Values of the config by dotted name.
    """
    return [catalog.load(_FOLDER, name).Tracker(workdir, fields) for name in names]
