"""Evaluate after every epoch, choose the epoch to report, stop early without improvement."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bertjax.constraints import Relation
from bertjax.train.hooks import Hook, Run, Values

Epoch = dict[str, Any]
"""`{"epoch": 1, "step": 115, "dev/score": 0.8, ...}`"""

RULES = {
    "last": "the last epoch of every seed",
    "best": "of every seed the epoch with the highest {metric}, chosen on the scores it reports",
}


RELATIONS = (
    Relation(
        ("early_stopping_patience", "choose_epoch"),
        lambda patience, rule: not patience or rule == "best",
        "early_stopping_patience=0 or choose_epoch='best'",
        "set --config.choose_epoch=best, since the last epochs are not better",
    ),
)


class EvaluateEpochs(Hook):
    """Evaluates at the end of each epoch and keeps the metrics.

    Not when the run is interrupted: the machine may be shut down soon. A resumed run evaluates the
    state of its checkpoint if that has no results of the epoch.

    Args:
      steps_per_epoch: Number of steps of an epoch.
      evaluate: (state, number of the epoch from 1, previous epochs) -> metrics by name.
      stopping: Criterion to end the run early; None trains all epochs.
    """

    def __init__(
        self,
        steps_per_epoch: int,
        evaluate: Callable[[Any, int, Sequence[Epoch]], Values],
        stopping: "EarlyStopping | None" = None,
    ):
        self._steps_per_epoch, self._evaluate = steps_per_epoch, evaluate
        self._stopping = stopping
        self.epochs: list[Epoch] = []

    def on_train_begin(self, run: Run, state: Any, restored: Mapping[str, Any]) -> None:
        self._run = run
        self.restore(restored)
        self._stop_early(run.first_step)

    def restore(self, restored: Mapping[str, Any]) -> None:
        """Restores the epochs of a checkpoint; also needed when all steps are done."""
        self.epochs = [dict(epoch) for epoch in restored.get("epochs", ())]

    def due(self, step: int, ending: str | None) -> bool:
        return ending != "interrupted" and step % self._steps_per_epoch == 0

    def on_step(self, step: int, state: Any) -> None:
        epoch = step // self._steps_per_epoch
        values = dict(self._evaluate(state, epoch, self.epochs))
        self.epochs.append({"epoch": epoch, "step": step, **values})
        self._run.record(step, values)
        self._stop_early(step)

    def is_missing(self, step: int, ending: str | None) -> bool:
        return len(self.epochs) < step // self._steps_per_epoch and self.due(step, ending)

    def _stop_early(self, step: int) -> None:
        """Makes this step the last one; a run that is resumed after it trains no further."""
        if self._stopping is None or step >= self._run.num_train_steps:
            return
        if self._stopping.should_stop(self.epochs):
            self._run.num_train_steps = step

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs}


@dataclasses.dataclass(frozen=True)
class EarlyStopping:
    """Stops a run whose metric has not improved for some epochs.

    Attributes:
      metric: Metric of the epochs; higher is better.
      patience: Number of epochs without a higher value than before.
      log: Logs the reason.
    """

    metric: str
    patience: int
    log: Callable[[str], None]

    def should_stop(self, epochs: Sequence[Epoch]) -> bool:
        """Whether to stop after these epochs, of which the last is the newest."""
        if not epochs:
            return False
        best = choose("best", self.metric, epochs)
        if len(epochs) - best["epoch"] < self.patience:
            return False
        self.log(
            f"early stopping after epoch {len(epochs)}: {self.metric} has not improved on "
            f"{best[self.metric]:.4f}, that of epoch {best['epoch']}, for {self.patience} epoch(s)"
        )
        return True


def is_chosen_so_far(
    rule: str, metric: str, newest: Values, before: Sequence[Epoch], *, is_last: bool
) -> bool:
    """Whether the rule chooses the newest of the epochs so far."""
    if rule == "last":
        return is_last
    return all(newest[metric] > epoch[metric] for epoch in before)


def choose(rule: str, metric: str, epochs: Sequence[Epoch]) -> Epoch:
    """Chooses an epoch by a rule; of equal scores the first."""
    if rule == "last":
        return epochs[-1]
    return max(epochs, key=lambda epoch: (epoch[metric], -epoch["epoch"]))
