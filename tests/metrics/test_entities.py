"""Entity counts equal hand-computed ones, a port of conlleval and seqeval."""

import itertools
import random

import pytest

from bertjax.metrics import entities
from bertjax.metrics.entities import EntityCounts


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("", []),
        ("O O", []),
        ("B-X I-X O B-Y", [("X", 0, 2), ("Y", 3, 4)]),
        ("B-X B-X", [("X", 0, 1), ("X", 1, 2)]),
        ("I-X I-X", [("X", 0, 2)]),  # IOB1
        ("I-X B-X I-X", [("X", 0, 1), ("X", 1, 3)]),  # IOB1: neighbours of one type
        ("O I-X I-Y", [("X", 1, 2), ("Y", 2, 3)]),  # broken in IOB2
        ("B-X I-Y I-Y O I-Y", [("X", 0, 1), ("Y", 1, 3), ("Y", 4, 5)]),
        ("B-X-Y I-X-Y I-X", [("X-Y", 0, 2), ("X", 2, 3)]),
        ("S-X B-X I-X E-X O", [("X", 0, 1), ("X", 1, 4)]),
        ("B-X E-X B-X", [("X", 0, 2), ("X", 2, 3)]),
        ("S-X I-X E-X E-X", [("X", 0, 1), ("X", 1, 3), ("X", 3, 4)]),
        ("B-X S-X", [("X", 0, 1), ("X", 1, 2)]),
    ],
)
def test_entities_of_a_sentence_by_hand(tags, expected):
    assert entities.extract_entities(tags.split()) == expected


def test_scores_by_hand():
    right = [["B-X", "I-X", "O", "B-Y"], ["B-Y", "O", "B-X"]]
    predicted = [["B-X", "I-X", "O", "B-X"], ["B-Y", "O", "O"]]
    # Three were predicted, four are there, two are both; five of seven tags are right.
    assert entities.score(predicted, right) == pytest.approx(
        {"precision": 2 / 3, "recall": 1 / 2, "f1": 4 / 7, "accuracy": 5 / 7}
    )
    assert entities.count_by_type(predicted, right) == {
        "X": EntityCounts(1, 2, 2),
        "Y": EntityCounts(1, 1, 2),
    }


def test_an_entity_with_a_wrong_boundary_is_incorrect():
    right = [["O", "B-X", "I-X", "O"]]
    for predicted in ("O B-X O O", "O B-X I-X I-X", "B-X I-X I-X O", "O B-Y I-Y O", "O O I-X O"):
        assert entities.score([predicted.split()], right)["f1"] == 0
    assert entities.score([["O", "I-X", "I-X", "O"]], right) == pytest.approx(
        {"precision": 1, "recall": 1, "f1": 1, "accuracy": 3 / 4}
    )


def test_no_entity_crosses_the_end_of_a_sentence():
    whole, parted = [["B-X", "I-X"]], [["B-X"], ["I-X"]]
    assert entities.count_by_type(whole, whole) == {"X": EntityCounts(1, 1, 1)}
    assert entities.count_by_type(parted, parted) == {"X": EntityCounts(2, 2, 2)}


def test_degenerate_input_has_the_value_0():
    nothing = dict.fromkeys(("precision", "recall", "f1", "accuracy"), 0.0)
    assert entities.score([], []) == nothing
    assert entities.score([[]], [[]]) == nothing
    assert entities.count_by_type([], []) == {}
    assert entities.score([["O"]], [["O"]]) == nothing | {"accuracy": 1.0}
    assert entities.score([["B-X"]], [["O"]]) == nothing
    assert entities.score([["O"]], [["B-X"]]) == nothing
    assert entities.count_by_type([["O"]], [["B-X"]]) == {"X": EntityCounts(0, 0, 1)}
    assert entities.count_by_type([["B-Y"]], [["O"]]) == {"Y": EntityCounts(0, 1, 0)}


def test_sentences_of_different_lengths_raise_a_value_error():
    with pytest.raises(ValueError, match="sentence 1: got 1 predicted tags, expected 2"):
        entities.score([["O"], ["O"]], [["O"], ["O", "O"]])
    with pytest.raises(ValueError, match="zip"):
        entities.score([["O"]], [])


ENDS = {("B", "B"), ("B", "O"), ("I", "B"), ("I", "O")}
BEGINS = {("B", "B"), ("I", "B"), ("O", "B"), ("O", "I")}


def count_word_by_word(predictions, references):
    """Count as the script does: no list of entities, two states carried from word to word."""
    correct = predicted = reference = right = words = 0
    before, both = (("O", ""), ("O", "")), False
    for guesses, tags in zip(predictions, references, strict=True):
        for guess, tag in [*zip(guesses, tags, strict=True), (None, None)]:
            now = [(*(each or "O").split("-", 1), "")[:2] for each in (guess, tag)]
            moves = list(zip(before, now, strict=True))
            ends = [(a[0], b[0]) in ENDS or (a[0] != "O" and a[1] != b[1]) for a, b in moves]
            starts = [(a[0], b[0]) in BEGINS or (b[0] != "O" and a[1] != b[1]) for a, b in moves]
            if both:
                correct += all(ends)
                both = not (any(ends) or now[0][1] != now[1][1])
            both = both or (all(starts) and now[0][1] == now[1][1])
            predicted += starts[0]
            reference += starts[1]
            if tag is not None:
                right += guess == tag
                words += 1
            before = now
    return EntityCounts(correct, predicted, reference), right / words


def random_tags(state, marks, sentences=300):
    tags = ["O", "O", *(f"{mark}-{kind}" for mark in marks for kind in ("X", "Y-Z"))]
    return [[state.choice(tags) for _ in range(1 + n % 9)] for n in range(sentences)]


@pytest.mark.parametrize("marks", ["BI", "I", "B"])
def test_random_tags_are_counted_as_in_the_script(marks):
    state = random.Random(marks)
    references = random_tags(state, marks)
    predictions = [
        [tag if state.random() < 0.7 else state.choice(["O", "I-X", "B-Y-Z"]) for tag in sentence]
        for sentence in references
    ]
    found, accuracy = count_word_by_word(predictions, references)
    assert found.correct > 50
    assert entities.score(predictions, references) == pytest.approx(
        found.scores() | {"accuracy": accuracy}
    )


BEGIN_AFTER = "OES"


def entities_by_boundaries(tags):
    """Extract BIOES entities as the script's Python ports do: from starts and ends of words."""
    found, start, before, kind_before = [], None, "O", ""
    for place, tag in enumerate([*tags, "O"]):
        mark, _, kind = tag.partition("-")
        changed = kind != kind_before
        ends = before in "ES" or (before in "BI" and (mark in "BSO" or changed))
        starts = mark in "BS" or (mark in "IE" and (before in BEGIN_AFTER or changed))
        if ends:
            found.append((kind_before, start, place))
        if starts:
            start = place
        before, kind_before = mark, kind
    return found


def test_invalid_bioes_counts_as_in_ports_of_the_script():
    for tags in itertools.product(["O", "B-X", "I-X", "E-X", "S-X", "I-Y", "E-Y"], repeat=4):
        assert entities.extract_entities(tags) == entities_by_boundaries(tags), tags


@pytest.mark.parametrize("marks", ["BI", "BIES"])
@pytest.mark.slow
def test_counts_equal_those_of_seqeval(marks):
    seqeval = pytest.importorskip("seqeval.metrics")
    state = random.Random(marks)
    references = random_tags(state, marks)
    predictions = [
        [tag if state.random() < 0.8 else "O" for tag in sentence] for sentence in references
    ]
    assert entities.score(predictions, references) == pytest.approx(
        {
            "precision": seqeval.precision_score(references, predictions),
            "recall": seqeval.recall_score(references, predictions),
            "f1": seqeval.f1_score(references, predictions),
            "accuracy": seqeval.accuracy_score(references, predictions),
        }
    )
    report = seqeval.classification_report(references, predictions, output_dict=True)
    for kind, found in entities.count_by_type(predictions, references).items():
        row = report[kind]
        assert (row["precision"], row["recall"], row["f1-score"]) == pytest.approx(
            (found.precision, found.recall, found.f1)
        )
        assert row["support"] == found.reference
