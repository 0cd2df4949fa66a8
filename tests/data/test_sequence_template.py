"""Special tokens around token sequences, by hand: both orders, both numbers of separators."""

import numpy as np
import pytest

from bertjax.data.sequence_template import SequenceTemplate

PAD, CLS, SEP = 90, 91, 92
FIRST, SECOND = [[1, 2, 3], [4]], [[5], [6, 7]]
LENGTHS = [np.array([3, 1]), np.array([1, 2])]


def template(**changes):
    return SequenceTemplate(CLS, SEP, PAD)._replace(**changes)


def written(frame):
    frame.write(0, FIRST)
    if len(frame.segment_starts) == 2:
        frame.write(1, SECOND)
    return frame.ids.tolist()


@pytest.mark.parametrize(
    ("changes", "ids", "first_lengths", "cls"),
    [
        ({}, [CLS, 1, 2, 3, SEP, CLS, 4, SEP], [5, 3], [0, 0]),
        ({"cls_last": True}, [1, 2, 3, SEP, CLS, 4, SEP, CLS], [4, 2], [4, 2]),
        ({"cls_id": None}, [1, 2, 3, SEP, 4, SEP], [4, 2], [0, 0]),
        ({"sep_id": None}, [CLS, 1, 2, 3, CLS, 4], [4, 2], [0, 0]),
        ({"pair_separators": 2}, [CLS, 1, 2, 3, SEP, CLS, 4, SEP], [5, 3], [0, 0]),
    ],
    ids=["bert", "xlnet", "no [CLS]", "no [SEP]", "roberta"],
)
def test_one_segment(changes, ids, first_lengths, cls):
    frame = template(**changes).frame(LENGTHS[:1])
    assert written(frame) == ids
    assert frame.first_lengths.tolist() == first_lengths
    assert frame.cls_positions.tolist() == cls
    assert frame.lengths.sum() == len(ids)


@pytest.mark.parametrize(
    ("changes", "ids", "second"),
    [
        ({}, [CLS, 1, 2, 3, SEP, 5, SEP, CLS, 4, SEP, 6, 7, SEP], [5, 3]),
        ({"cls_last": True}, [1, 2, 3, SEP, 5, SEP, CLS, 4, SEP, 6, 7, SEP, CLS], [4, 2]),
        (
            {"pair_separators": 2},
            [CLS, 1, 2, 3, SEP, SEP, 5, SEP, CLS, 4, SEP, SEP, 6, 7, SEP],
            [6, 4],
        ),
        ({"cls_id": None}, [1, 2, 3, SEP, 5, SEP, 4, SEP, 6, 7, SEP], [4, 2]),
    ],
    ids=["bert", "xlnet", "roberta", "no [CLS]"],
)
def test_two_segments(changes, ids, second):
    frame = template(**changes).frame(LENGTHS)
    assert written(frame) == ids
    assert frame.segment_starts[1].tolist() == second
    assert frame.lengths.sum() == len(ids)


@pytest.mark.parametrize("changes", [{}, {"cls_last": True}, {"pair_separators": 2}])
@pytest.mark.parametrize("segments", [1, 2])
def test_padded_rows_are_the_ragged_sequences_with_padding(changes, segments):
    ragged = template(**changes).frame(LENGTHS[:segments])
    ids = written(ragged)
    rows, mask = template(**changes).frame_rows(LENGTHS[:segments], 11)
    written(rows)
    assert rows.ids.reshape(2, 11)[mask].tolist() == ids
    assert (rows.ids.reshape(2, 11)[~mask] == PAD).all()
    assert mask.sum(axis=1).tolist() == ragged.lengths.tolist()
    assert rows.first_lengths.tolist() == ragged.first_lengths.tolist()


def test_ids_of_a_table_leave_missing_tokens_missing():
    assert template(sep_id=None).map_ids(lambda token: token + 1)[:3] == (CLS + 1, None, PAD)
