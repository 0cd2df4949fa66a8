"""Reading sources in blocks, and resuming from a position."""

import pytest

from bertjax.corpus import reading
from bertjax.corpus.reading import Stream, read_blocks
from bertjax.corpus.shards import START, Position
from bertjax.corpus.sources import Source
from bertjax.corpus.text import Document
from bertjax.errors import UserError

TEXTS = {
    "a": [f"a{number} " * (number % 7 + 1) for number in range(31)],
    "b": ["", "b1", ""],
    "c": [f"c{number} " * 3 for number in range(17)],
}
SOURCES = [Source(name, 100) for name in TEXTS]
EVERYTHING = [text for texts in TEXTS.values() for text in texts if text]


def read(source):
    return map(Document, TEXTS[source.name])


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(reading, "BLOCK_CHARACTERS", 50)


def test_blocks_contain_every_document_once_in_order():
    found = list(read_blocks(Stream(SOURCES, ("train",)), {"train": START}, read))
    assert [text for block in found for text in block.texts] == EVERYTHING
    assert all(50 <= block.characters < 50 + 28 for block in found[:-1])
    assert [block.is_last for block in found] == [False] * (len(found) - 1) + [True]
    assert sum(block.dropped["empty"] for block in found) == 2
    assert found[-1].position == (3, 0, "")
    assert found[-1].input_bytes == 300


def test_reading_resumes_from_the_position_of_any_block():
    stream = Stream(SOURCES, ("train",))
    whole = list(read_blocks(stream, {"train": START}, read))
    for number, block in enumerate(whole):
        rest = list(read_blocks(stream, {"train": block.position}, read))
        expected = whole[number + 1 :] or [whole[-1]]
        if block.is_last:
            assert [found.texts for found in rest] == [[]]
        else:
            assert rest == expected


def test_two_splits_resume_from_different_positions():
    stream = Stream(SOURCES, ("train", "validation"), 0.3)
    start = {"train": START, "validation": START}
    whole = list(read_blocks(stream, start, read))
    by_split = {split: [b for b in whole if b.split == split] for split in start}
    assert all(len(found) > 2 for found in by_split.values())
    for first in range(len(by_split["train"]) - 1):
        for second in range(len(by_split["validation"]) - 1):
            positions = {
                "train": by_split["train"][first].position,
                "validation": by_split["validation"][second].position,
            }
            rest = list(read_blocks(stream, positions, read))
            for split, done in (("train", first), ("validation", second)):
                found = [b for b in rest if b.split == split]
                assert [b.texts for b in found] == [b.texts for b in by_split[split][done + 1 :]]


def test_a_split_depends_on_the_text_only():
    stream = Stream([], ("train", "validation"), 0.25)
    chosen = [stream.choose(b"%d" % number) for number in range(4000)]
    assert chosen == [stream.choose(b"%d" % number) for number in range(4000)]
    assert 900 < chosen.count("validation") < 1100
    fewer = Stream([], ("train", "validation"), 0.1)
    taken = [number for number in range(4000) if fewer.choose(b"%d" % number) == "validation"]
    assert all(chosen[number] == "validation" for number in taken)


@pytest.mark.parametrize("change", ["edit", "shorten"])
def test_changes_before_the_position_are_refused(change):
    stream = Stream(SOURCES, ("train",))
    block = next(read_blocks(stream, {"train": START}, read))
    assert block.position.document > 5

    def read_changed(source):
        texts = list(TEXTS[source.name])
        if source.name == "a" and change == "edit":
            texts[2] = texts[2][:-1] + "!"
        if source.name == "a" and change == "shorten":
            texts = texts[:5]
        return map(Document, texts)

    with pytest.raises(UserError, match="a has changed since"):
        list(read_blocks(stream, {"train": block.position}, read_changed))


def test_changes_after_the_position_are_accepted():
    """A damaged file can be replaced before resuming."""
    stream = Stream(SOURCES, ("train",))
    block = next(read_blocks(stream, {"train": START}, read))

    def read_repaired(source):
        return map(Document, [*TEXTS[source.name], "new"])

    found = list(read_blocks(stream, {"train": block.position}, read_repaired))
    assert sum(b.texts.count("new") for b in found) == 3


def test_a_position_at_the_end_of_a_source_is_checked():
    stream = Stream(SOURCES[1:2], ("train",))
    digest = "0" * 32
    with pytest.raises(UserError, match="b has changed"):
        list(read_blocks(stream, {"train": Position(0, 3, digest)}, read))
