"""Evaluate after every epoch, keep the metrics in checkpoints, choose the epoch to report."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bertjax.train.hooks import Hook, Run, Values

Epoch = dict[str, Any]
"""`{"epoch": 1, "step": 115, "dev/score": 0.8, ...}`"""

RULES = {
    "last": "the last epoch of every seed",
    "best": "of every seed the epoch with the highest {metric}, chosen on the scores it reports",
}


class EvaluateEpochs(Hook):
    """Evaluates at the end of each epoch and keeps the metrics.

    Args:
      steps_per_epoch: Number of steps of an epoch.
      evaluate: (state, number of the epoch from 1, previous epochs) -> metrics by name.
    """

    def __init__(
        self, steps_per_epoch: int, evaluate: Callable[[Any, int, Sequence[Epoch]], Values]
    ):
        self._steps_per_epoch, self._evaluate = steps_per_epoch, evaluate
        self.epochs: list[Epoch] = []

    def on_train_begin(self, run: Run, state: Any, restored: Mapping[str, Any]) -> None:
        self._run = run
        self.restore(restored)

    def restore(self, restored: Mapping[str, Any]) -> None:
        """Restores the epochs of a checkpoint; also needed when all steps are done."""
        self.epochs = [dict(epoch) for epoch in restored.get("epochs", ())]

    def due(self, step: int, ending: str | None) -> bool:
        return step % self._steps_per_epoch == 0

    def on_step(self, step: int, state: Any) -> None:
        epoch = step // self._steps_per_epoch
        values = dict(self._evaluate(state, epoch, self.epochs))
        self.epochs.append({"epoch": epoch, "step": step, **values})
        self._run.record(step, values)

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs}


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
