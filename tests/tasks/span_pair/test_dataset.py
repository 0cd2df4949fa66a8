"""Span datasets: marked tokens of one and two texts, truncation, user inputs."""

import json

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.tasks.span_pair import dataset as span_pair_dataset
from bertjax.tokenizers import tokenizer

WORDS = ["the", "old", "mill", "turns", "they", "by", "anna", "berg", "she", "left", "."]
WIC = {
    "word": "mill",
    "sentence1": "The old mill turns.",
    "sentence2": "They mill by the mill.",
    **{"start1": 8, "end1": 12, "start2": 17, "end2": 21, "idx": 0, "label": True},
}
TARGET = {"span1_index": 0, "span1_text": "Anna Berg", "span2_index": 3, "span2_text": "she"}
WSC = {"text": "Anna Berg left. She turns.", "target": TARGET, "idx": 0, "label": False}


@pytest.fixture(scope="module")
def words():
    return tokenizer.train([" ".join(WORDS)] * 4, kind="wordpiece", vocab_size=60)


@pytest.fixture
def dataset(tmp_path, encoding_spec, words):
    for folder, record in (("WiC", WIC), ("WSC", WSC)):
        (tmp_path / folder).mkdir()
        for split in ("train", "val"):
            (tmp_path / folder / f"{split}.jsonl").write_text(json.dumps(record) + "\n")

    def make(name, **changes):
        sizes = {"max_seq_length": 40, "padded_lengths": (), "batch_size": 1, "eval_batch_size": 1}
        spec = encoding_spec(words, **sizes | changes)
        return span_pair_dataset.Dataset(str(tmp_path), {"dataset": name}, {}, spec)

    return make


def marked(words, batches, bit):
    _, batch = next(batches.evaluation_batches())
    ids = batch["input_ids"][0][(batch["span_ids"][0] & bit) > 0]
    return words.decode(ids.tolist())


@pytest.mark.parametrize("cls_last", [False, True])
def test_the_tokens_of_both_spans_are_marked(dataset, words, cls_last):
    batches = dataset("wic", cls_last=cls_last).batches["dev"]
    _, batch = next(batches.evaluation_batches())
    tokens = words.ids_to_pieces(batch["input_ids"][0].tolist())
    places = {bit: np.flatnonzero(batch["span_ids"][0] & bit).tolist() for bit in (1, 2)}
    assert [tokens[place] for place in places[1] + places[2]] == ["mill", "mill"]
    # The last "mill" of the second sentence, which has it twice.
    assert places[2] == [max(n for n, token in enumerate(tokens) if token == "mill")]
    batches = dataset("wsc", cls_last=cls_last).batches["dev"]
    assert marked(words, batches, 1) == "anna berg"
    assert marked(words, batches, 2) == "she"


def test_a_span_beyond_the_maximum_length_is_refused(dataset):
    with pytest.raises(UserError, match=r"train.jsonl:1: span 'She': got no token within the"):
        dataset("wsc", max_seq_length=6)


def test_user_inputs_are_records(encoding_spec, words):
    spec = encoding_spec(
        words, max_seq_length=40, padded_lengths=(), batch_size=1, eval_batch_size=1
    )
    record = {name: value for name, value in WSC.items() if name not in ("idx", "label")}
    lines = [("stdin:1", json.dumps(record))]
    request = span_pair_dataset.from_inputs(lines, "", {"dataset": "wsc"}, {}, spec)
    (answer,) = request.answers(np.array([[np.log(3), 0.0]]))
    assert answer == record | {
        "label": "False",
        "probabilities": pytest.approx({"False": 0.75, "True": 0.25}),
    }
    wrong = [("stdin:1", json.dumps({"text": "Anna left."}))]
    with pytest.raises(UserError, match=r"stdin:1 has no 'target': got 'text', 'idx', expected a"):
        span_pair_dataset.from_inputs(wrong, "", {"dataset": "wsc"}, {}, spec)
