"""Entity-level precision, recall and F1 of tag sequences, as computed by `conlleval`.

A tag is O, outside of every entity, or a prefix, a hyphen and a type: B-ORG. B starts an entity and
I continues it; I after O or after another type starts one too. So IOB1 and IOB2 are read without
declaring which it is, and invalid sequences are defined as well. `conlleval` does not support the
prefixes E (end) and S (single) of BIOES: sequences with these count as in seqeval and in the
script's Python ports. A predicted entity is correct if its type and both boundaries are; no entity
crosses the end of a sentence. Measures are fractions, and 0 where they would divide by zero.
"""

import dataclasses
from collections.abc import Iterator, Sequence

OUTSIDE = "O"

Entity = tuple[str, int, int]
"""(type, index of the first word, index after the last word)."""

_Tags = Sequence[Sequence[str]]


@dataclasses.dataclass(frozen=True)
class EntityCounts:
    """Numbers of entities from which precision, recall and F1 are computed.

    Attributes:
      correct: Predicted entities that equal a reference entity.
      predicted: Predicted entities.
      reference: Reference entities.
    """

    correct: int
    predicted: int
    reference: int

    @property
    def precision(self) -> float:
        """Fraction of predicted entities that are correct."""
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """Fraction of reference entities that were predicted."""
        return self.correct / self.reference if self.reference else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return 2 * self.correct / (self.predicted + self.reference) if self.correct else 0.0

    def scores(self) -> dict[str, float]:
        """Return precision, recall and F1 by name."""
        return {"precision": self.precision, "recall": self.recall, "f1": self.f1}


def split_tag(tag: str) -> tuple[str, str]:
    """Split a tag at its first hyphen into prefix and type, which is "" for O."""
    prefix, _, kind = tag.partition("-")
    return prefix, kind


def starts_entity(before: str, tag: str) -> bool:
    """Whether a tag starts an entity after the tag `before` (O at the start of a sentence)."""
    prefix, kind = split_tag(tag)
    if prefix in ("I", "E"):
        prefix_before, kind_before = split_tag(before)
        return prefix_before in (OUTSIDE, "E", "S") or kind_before != kind
    return prefix != OUTSIDE


def extract_entities(tags: Sequence[str]) -> list[Entity]:
    """List the entities of one sentence in order."""
    return list(_entities(tags))


def score(predictions: _Tags, references: _Tags) -> dict[str, float]:
    """Compute precision, recall and F1 of entities, and the accuracy of tags.

    Args:
      predictions: Predicted tags of each sentence.
      references: Reference tags of each sentence.

    Returns:
      `precision`, `recall`, `f1`, and `accuracy`, the fraction of words with the correct tag.

    Raises:
      ValueError: A sentence has different numbers of predicted and reference tags.
    """
    counts = _count(predictions, references, None)
    words = right = 0
    for predicted, reference in zip(predictions, references, strict=True):
        words += len(reference)
        right += sum(map(str.__eq__, predicted, reference))
    return counts.scores() | {"accuracy": right / words if words else 0.0}


def count_by_type(predictions: _Tags, references: _Tags) -> dict[str, EntityCounts]:
    """Count entities by type, for every type that was predicted or is in the references."""
    every = (entity for sentence in (*predictions, *references) for entity in _entities(sentence))
    kinds = sorted({kind for kind, _, _ in every})
    return {kind: _count(predictions, references, kind) for kind in kinds}


def _entities(tags: Sequence[str]) -> Iterator[Entity]:
    before, start = OUTSIDE, 0
    for index, tag in enumerate((*tags, OUTSIDE)):
        starts = starts_entity(before, tag)
        if before != OUTSIDE and (starts or tag == OUTSIDE):
            yield split_tag(before)[1], start, index
        if starts:
            start = index
        before = tag


def _count(predictions: _Tags, references: _Tags, kind: str | None) -> EntityCounts:
    """Count the entities of one type, or of all types if `kind` is None."""
    correct = predicted = reference = 0
    for number, (tags, expected) in enumerate(zip(predictions, references, strict=True)):
        if len(tags) != len(expected):
            raise ValueError(
                f"sentence {number}: got {len(tags)} predicted tags, expected {len(expected)}, "
                "one per word"
            )
        predicted_entities, reference_entities = (
            {entity for entity in _entities(each) if kind in (None, entity[0])}
            for each in (tags, expected)
        )
        correct += len(predicted_entities & reference_entities)
        predicted += len(predicted_entities)
        reference += len(reference_entities)
    return EntityCounts(correct, predicted, reference)
