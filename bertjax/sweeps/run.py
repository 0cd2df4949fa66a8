"""A run of a sweep or of a suite: one `bertjax` command with a folder of its own."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.overrides import Override
from bertjax.sweeps import grid

INIT = "init"
"""Option of fine-tuning: the pretrained run. A run of a sweep may set it next to its fields."""

SCORE = "dev/score"
"""Metric by which fine-tuning runs are compared."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A `bertjax pretrain` or `bertjax finetune` command.

    Attributes:
      name: Name of its folder, relative to the workdir of the sweep.
      verb: `pretrain` or `finetune`.
      options: Flags of the command, without --workdir: `config`, `init`, `data`, `seeds`.
      settings: Config fields in which it differs from the other runs, and their values.
      overrides: Config overrides that all runs share.
      steps: Total training steps of a pretraining; None for fine-tuning, which counts epochs.
      metric: Metric by which runs are compared.
      mode: `min` or `max`: which values of the metric are better.
      work: Expected duration, relative to the other runs.
      log: File in its folder that gets the output of the process.
      init_from: Names of runs that end before this one starts; it is initialised from the best of
        them, the seed whose score is the median.
    """

    name: str
    verb: str
    options: Mapping[str, Any]
    settings: Mapping[str, Any]
    overrides: Sequence[Override] = ()
    steps: int | None = None
    metric: str = SCORE
    mode: str = "max"
    work: float = 1.0
    log: str = "finetune.log"
    init_from: tuple[str, ...] = ()

    @property
    def seeds(self) -> int:
        """Number of seeds of a fine-tuning."""
        return self.options.get("seeds", 1)

    def words(self, workdir: str) -> list[str]:
        """The words of its command after `bertjax`, with this --workdir."""
        settings = ((field, text(value)) for field, value in self.settings.items() if field != INIT)
        return [
            self.verb,
            *(word for name, value in self.options.items() for word in (f"--{name}", str(value))),
            *("--workdir", workdir),
            *(f"--config.{field}={value}" for field, value in [*self.overrides, *settings]),
        ]


def text(value: Any) -> str:
    """A value as it is written on the command line."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return grid.value_text(value) if isinstance(value, float) else str(value)
