"""Examples of one or two texts, as read from files, and the stratified split of a dev part."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Num

from bertjax.data.random import sample
from bertjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class SequenceExamples:
    """The examples of a split, in file order.

    Attributes:
      texts: One or two lists of texts.
      labels: int32 class indices, float32 scores or a bool for each class; None for an unlabelled
        split.
      indices: The name of each example in prediction files.
      left_out: Malformed lines that were skipped, as "line 17".
    """

    texts: tuple[list[str], ...]
    labels: Num[np.ndarray, "n *more"] | None
    indices: list[str]
    left_out: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.indices)

    def sample(self, size: int, seed: int) -> "SequenceExamples":
        """Returns `size` random examples, sampled without replacement, in file order."""
        return self.take(sample(len(self), size, seed))

    def take(self, kept: Num[np.ndarray, " m"]) -> "SequenceExamples":
        """Returns the examples with these numbers, in their order."""
        return SequenceExamples(
            texts=tuple([column[i] for i in kept] for column in self.texts),
            labels=None if self.labels is None else self.labels[kept],
            indices=[self.indices[i] for i in kept],
            left_out=self.left_out,
        )


def choose_held_out(
    labels: Num[np.ndarray, "n *more"], share: float, seed: int
) -> Bool[np.ndarray, " n"]:
    """Chooses the examples of the dev split.

    Of each class, from the rarest to the most frequent, `share` of the examples is chosen, rounded,
    and at least one, but never all. With several labels per example this is iterative
    stratification (Sechidis et al. 2011, algorithm 1) with an order that is fixed in advance:
    examples chosen for a rare class count for their other classes too. Scores are not stratified.

    Args:
      labels: Class indices, 0 or 1 for each class, or float scores.
      share: Share of the dev split, between 0 and 1.
      seed: Seed of the choice, which is a pure function of labels, share and seed.
    """
    size = len(labels)
    # The raw bits of a bit generator stay the same in every release of numpy.
    order = np.argsort(np.random.Philox(key=[seed, 0]).random_raw(size), kind="stable")
    is_open, is_chosen = np.ones(size, bool), np.zeros(size, bool)

    def assign(members: Bool[np.ndarray, " n"], count: int) -> None:
        candidates = order[(members & is_open)[order]]
        is_chosen[candidates[: max(count, 0)]] = True
        is_open[candidates] = False

    if not np.issubdtype(labels.dtype, np.floating):
        classes = np.arange(labels.max() + 1) if labels.ndim == 1 else np.arange(labels.shape[1])
        members = [labels == c if labels.ndim == 1 else labels[:, c] > 0 for c in classes]
        for own in sorted(members, key=np.count_nonzero):
            assign(own, _size(int(own.sum()), share) - int((own & is_chosen).sum()))
    assign(is_open.copy(), _size(int(is_open.sum()), share))
    return is_chosen


def _size(count: int, share: float) -> int:
    """Number of examples of the dev split among `count`."""
    return min(max(round(share * count), 1), count - 1)


def check_counts(labels: Num[np.ndarray, " n"], names: tuple[str, ...]) -> None:
    """Refuses a class that cannot be in both parts.

    Raises:
      UserError: a class has one example.
    """
    counts = np.bincount(labels, minlength=len(names))
    for count, name in zip(counts.tolist(), names, strict=True):
        if count < 2:
            numbers = all(each.lstrip("-").isdigit() for each in names)
            regression = "; for a score set --config.task.problem_type=regression"
            raise UserError(
                f"class {name!r} has {count} example, expected 2 or more to split dev from train; "
                "remove it, add examples, or pass a folder with a dev file"
                f"{regression if numbers else ''}"
            )


def check_unused(data: str, fields: Mapping[str, Any]) -> None:
    """Refuses options of a split that is not made, since there is a dev file.

    Raises:
      UserError: naming the option.
    """
    for name in ("validation_fraction", "split_seed"):
        if fields[name] is not None:
            raise UserError(
                f"config.data.{name}: got {fields[name]}, expected none, as {data} has a dev file; "
                "leave one of them out"
            )
