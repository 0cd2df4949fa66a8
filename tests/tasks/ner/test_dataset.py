"""NER datasets: encoding, entity scores, CoNLL output, inputs of predict."""

import json

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.tasks.ner import dataset as ner_dataset
from bertjax.tokenizers import tokenizer as tokenizers

TEXT = """-DOCSTART- -X- O O

Anna NNP I-NP B-PER
Berg NNP I-NP I-PER
saw VBD I-VP O
Oslo NNP I-NP B-LOC
. . O O

It PRP I-NP O
was VBD I-VP O
cold JJ I-ADJP O
in IN I-PP O
northern JJ I-NP O
Oslo NNP I-NP B-LOC
"""
FIELDS = {f"{split}_file": "" for split in ("train", "dev", "test")}
FIELDS |= {"scheme": "auto", "document_context": False}


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizers.train([TEXT] * 4, kind="wordpiece", vocab_size=60)


@pytest.fixture
def data(tmp_path):
    for name in ("train", "valid", "test"):
        (tmp_path / f"{name}.txt").write_text(TEXT)
    return tmp_path


@pytest.fixture
def dataset(data, tokenizer, encoding_spec):
    def make(**changes):
        read = encoding_spec(tokenizer, max_seq_length=24, padded_lengths=())
        return ner_dataset.Dataset(str(data), {"labels": ()}, FIELDS | changes, read)

    return make


def certain(found, split="dev"):
    """Predictions of a model that is correct for every word."""
    batches = found.batches[split]
    rows = batches.pairs.rows(np.arange(len(batches.pairs)), 24)
    return np.maximum(rows["token_labels"] - 1, 0)


@pytest.mark.parametrize("document_context", [False, True])
def test_correct_predictions_score_one_and_are_written_as_columns(
    dataset, document_context, tmp_path
):
    found = dataset(document_context=document_context)
    assert found.task_fields == {"labels": ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")}
    predicted = certain(found)
    assert found.score("dev", predicted) == dict.fromkeys(
        ("precision", "recall", "f1", "accuracy"), 1.0
    )
    assert found.headline({"dev/f1": 0.5}) == {"dev/score": 0.5}
    found.write("test", predicted, tmp_path / "out")
    lines = (tmp_path / "out" / "test.txt").read_text().splitlines()
    assert lines[0].split() == ["Anna", "NNP", "I-NP", "B-PER", "B-PER"]
    assert lines[5] == ""
    assert sum(map(bool, lines)) == 11


def test_a_missed_entity_lowers_the_score(dataset):
    found = dataset()
    predicted = certain(found)
    predicted[predicted == 1] = 0  # no places
    assert found.score("dev", predicted) == {
        "precision": 1.0,
        "recall": pytest.approx(1 / 3),
        "f1": pytest.approx(0.5),
        "accuracy": pytest.approx(9 / 11),
    }


def test_words_from_inputs(tokenizer, encoding_spec):
    read = encoding_spec(tokenizer, max_seq_length=24, padded_lengths=())
    labels = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    lines = [("stdin:1", "Anna Berg saw Oslo"), ("stdin:2", json.dumps({"words": ["New York"]}))]
    inputs = ner_dataset.from_inputs(lines, "", {"labels": labels}, FIELDS, read)
    logits = np.zeros((2, 24, 5))
    logits[0, :, 3], logits[1, :, 1] = 9, 9
    first, second = inputs.answers(logits)
    assert first["words"] == ["Anna", "Berg", "saw", "Oslo"]
    assert first["tags"] == ["B-PER"] * 4
    assert second["entities"] == [{"type": "LOC", "text": "New York", "words": [0, 1]}]
    assert second["probabilities"] == pytest.approx([1.0], abs=1e-3)
    for line in ('{"words": 3}', '{"words": []}', "{"):
        with pytest.raises(UserError, match=r"stdin:3: (got .*, )?expected"):
            ner_dataset.from_inputs([("stdin:3", line)], "", {"labels": labels}, FIELDS, read)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"dev_file": "mine.txt"},
            "no mine.txt in .*: --data expects the folder of the task's files",
        ),
        ({"scheme": "iob3"}, r"unknown tagging scheme"),
    ],
)
def test_a_user_error_is_one_line(dataset, changes, message):
    with pytest.raises(UserError, match=message) as caught:
        dataset(**changes)
    assert "\n" not in str(caught.value)


def test_a_tag_that_training_does_not_have_is_named(dataset, data):
    (data / "valid.txt").write_text("Oslo X B-CITY\n")
    with pytest.raises(UserError, match=r"valid\.txt:1: tag: got 'B-CITY', expected a"):
        dataset()
