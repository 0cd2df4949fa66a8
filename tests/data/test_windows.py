"""Windows over documents: counts, offsets and preceding windows."""

import numpy as np
import pytest

from bertjax.data.layout import Layout
from bertjax.data.windows import DocumentWindows, ShortenedWindows, StreamWindows


@pytest.fixture
def layout(memory_corpus):
    """Documents of 11, 5 and 13 tokens, in records of at most 6."""
    return Layout(memory_corpus([[3, 3, 5], [5], [6, 4, 3]], record_tokens=6))


def test_records_and_documents_have_positions(layout):
    assert layout.tokens.tolist() == [6, 5, 5, 6, 4, 3]
    assert layout.record_begin.tolist() == [0, 6, 11, 16, 22, 26, 29]
    assert layout.record_of_document.tolist() == [0, 2, 3, 6]
    assert layout.document_sentences.tolist() == [3, 1, 3]
    assert layout.total == 29
    assert layout.mean_sentence == pytest.approx(29 / 7)
    positions = np.array([0, 5, 6, 15, 28, 29, 35])
    assert layout.record_at(positions).tolist() == [0, 0, 1, 2, 5, 6, 7]


def test_documents_can_be_separated(memory_corpus):
    layout = Layout(memory_corpus([[3, 3, 5], [5], [6, 4, 3]], record_tokens=6), separated=True)
    assert layout.record_begin.tolist() == [0, 6, 12, 18, 24, 28, 32]
    assert layout.record_at(np.array([11, 12])).tolist() == [1, 2]


def test_number_and_shift_of_windows_by_hand(layout):
    # Windows of 8 tokens are 8 - round(0.8 * 29 / 7) = 5 apart and overlap by 3: 14 and 16 tokens
    # take 3 and 4 windows, which may be moved by 0 to 4 and by 3 to 7 tokens.
    windows = DocumentWindows(layout, 8, 0, np.ones(3, bool))
    assert windows.stride == 5
    assert windows.examples_of_document.tolist() == [0, 3, 4, 8]
    assert windows.document(np.arange(8)).tolist() == [0, 0, 0, 1, 2, 2, 2, 2]
    starts = {tuple(windows.starts(epoch, np.arange(8))[-1].tolist()) for epoch in range(200)}
    first = {tuple(max(0, number * 5 - moved) for number in range(3)) for moved in range(5)}
    last = {tuple(16 + max(0, number * 5 - moved) for number in range(4)) for moved in range(3, 8)}
    assert {found[:3] for found in starts} == first
    assert {found[3] for found in starts} == {11}
    assert {found[4:] for found in starts} == last


def test_preceding_windows_are_in_the_same_document(layout):
    windows = DocumentWindows(layout, 8, 0, np.ones(3, bool))
    own = windows.starts(0, np.arange(4, 8))
    assert np.array_equal(own[0], own[-1][[0, 0, 0, 1]])
    assert np.array_equal(own[1], own[-1][[0, 0, 1, 2]])


def test_excluded_documents_have_no_windows(layout):
    windows = DocumentWindows(layout, 8, 0, np.array([True, False, True]))
    assert windows.examples_of_document.tolist() == [0, 3, 3, 7]
    assert windows.document(np.array([2, 3])).tolist() == [0, 2]


def test_a_stream_starts_anywhere_and_is_cyclic(layout):
    windows = StreamWindows(layout, 8, 0)
    assert len(windows) == 6  # 29 tokens, 5 apart
    entries = []
    for epoch in range(400):
        starts = windows.starts(epoch, np.arange(6))[-1]
        assert np.diff(starts).tolist() == [5] * 5
        entries.append(starts[0])
    assert set(entries) == set(range(29))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_short_examples_are_the_parts_of_a_window(memory_corpus, share):
    layout = Layout(memory_corpus([[1] * 1000] * 20))
    windows = DocumentWindows(layout, 50, 0, np.ones(20, bool))
    shortened = ShortenedWindows(windows, share)
    everyone = np.arange(len(shortened))
    numbers = shortened.window(3, everyone)
    assert numbers[: len(windows)].tolist() == list(range(len(windows)))
    rests = everyone[len(windows) :]
    assert len(set(numbers[rests].tolist())) == len(rests)
    locations = shortened.locate(3, everyone)
    first = numbers[rests]
    assert np.array_equal(locations.capacity[first], locations.skipped[rests])
    assert (locations.capacity[rests] == 50).all()
    whole = np.setdiff1d(np.arange(len(windows)), first)
    assert (locations.capacity[whole] == 50).all()
    assert (locations.skipped[: len(windows)] == 0).all()
    assert 2 * len(rests) / len(everyone) == pytest.approx(share, abs=0.002)
