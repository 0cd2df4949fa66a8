"""Entity-level precision, recall and F1, counted as by the script `conlleval`.

A tag is O, outside of every entity, or a mark, a hyphen and a type: B-ORG. B begins an entity and I
continues with it; I begins one too where nothing of its type stands before it. So IOB1 and IOB2
need no word about which it is, and a broken sequence has a meaning: I behind O, or behind another
type, begins an entity. The script knows no E (ends one) and S (is one) of BIOES: with these,
sequences count as in seqeval and in the script's Python ports. An entity is found when its type
and both its ends are right; none reaches over the end of a sentence. Measures are fractions, and 0
where they would divide by zero.
"""

import dataclasses
from collections.abc import Iterator, Sequence

OUTSIDE = "O"

Entity = tuple[str, int, int]
"""Its type, its first word and the word behind its last."""

_Tags = Sequence[Sequence[str]]


@dataclasses.dataclass(frozen=True)
class EntityCounts:
    """How many entities were predicted, how many there are, and how many are both.

    Attributes:
      correct: Entities that were predicted and are there.
      predicted: Entities that were predicted.
      reference: Entities that are there.
    """

    correct: int
    predicted: int
    reference: int

    @property
    def precision(self) -> float:
        """The share of predicted entities that are there."""
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """The share of entities that were predicted."""
        return self.correct / self.reference if self.reference else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return 2 * self.correct / (self.predicted + self.reference) if self.correct else 0.0

    def scores(self) -> dict[str, float]:
        """The three measures, by name."""
        return {"precision": self.precision, "recall": self.recall, "f1": self.f1}


def split_tag(tag: str) -> tuple[str, str]:
    """The mark and the type of a tag; types may have hyphens of their own."""
    mark, _, kind = tag.partition("-")
    return mark, kind


def starts_entity(before: str, tag: str) -> bool:
    """Whether a tag begins an entity behind the tag `before`; O before the first of a sentence."""
    mark, kind = split_tag(tag)
    if mark in ("I", "E"):
        mark_before, kind_before = split_tag(before)
        return mark_before in (OUTSIDE, "E", "S") or kind_before != kind
    return mark != OUTSIDE


def extract_entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of one sentence, in their order."""
    return list(_entities(tags))


def score(predictions: _Tags, references: _Tags) -> dict[str, float]:
    """Precision, recall and F1 of entities, and the share of words whose tag is right.

    Args:
      predictions: The tags of each sentence, as predicted.
      references: The right ones.
    """
    found = _count(predictions, references, None)
    words = right = 0
    for predicted, wanted in zip(predictions, references, strict=True):
        words += len(wanted)
        right += sum(map(str.__eq__, predicted, wanted))
    return found.scores() | {"accuracy": right / words if words else 0.0}


def count_by_type(predictions: _Tags, references: _Tags) -> dict[str, EntityCounts]:
    """What was found of each type of entity that was predicted or is there."""
    every = (entity for sentence in (*predictions, *references) for entity in _entities(sentence))
    kinds = sorted({kind for kind, _, _ in every})
    return {kind: _count(predictions, references, kind) for kind in kinds}


def _entities(tags: Sequence[str]) -> Iterator[Entity]:
    before, begin = OUTSIDE, 0
    for place, tag in enumerate((*tags, OUTSIDE)):
        begun = starts_entity(before, tag)
        if before != OUTSIDE and (begun or tag == OUTSIDE):
            yield split_tag(before)[1], begin, place
        if begun:
            begin = place
        before = tag


def _count(predictions: _Tags, references: _Tags, kind: str | None) -> EntityCounts:
    """Counts the entities of one type, or all."""
    correct = predicted = wanted = 0
    for number, (tags, right) in enumerate(zip(predictions, references, strict=True)):
        if len(tags) != len(right):
            raise ValueError(f"sentence {number}: {len(tags)} tags for {len(right)} words")
        ours, theirs = (
            {entity for entity in _entities(each) if kind in (None, entity[0])}
            for each in (tags, right)
        )
        correct += len(ours & theirs)
        predicted += len(ours)
        wanted += len(theirs)
    return EntityCounts(correct, predicted, wanted)
