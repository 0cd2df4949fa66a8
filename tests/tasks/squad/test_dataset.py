"""SQuAD datasets: windows as examples, scores, thresholds, inputs of predict."""

import json

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.tasks.squad import dataset as squad_dataset
from bertjax.tokenizers import tokenizer as tokenizers

CONTEXT = "The old mill by the river was built in 1802 by Anna Berg, who came from the north."
QUESTIONS = {
    "When was the mill built?": "1802",
    "Who built the mill?": "Anna Berg",
    "Where did Anna come from?": "the north",
    "Who sold the mill?": "",
}
K = 3
FIELDS = {
    **{f"{split}_file": "" for split in ("train", "dev", "test")},
    "unanswerable": True,
    "on_mismatch": "stop",
    "doc_stride": 6,
    "max_query_length": 12,
    "max_answer_length": 8,
    "null_threshold": None,
}


def content(answers):
    questions = [
        {
            "id": f"q{number}",
            "question": text,
            "answers": [{"text": answer, "answer_start": CONTEXT.find(answer)}] if answer else [],
            "is_impossible": not answer,
        }
        for number, (text, answer) in enumerate(answers.items())
    ]
    return {"data": [{"title": "Mill", "paragraphs": [{"context": CONTEXT, "qas": questions}]}]}


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizers.train([CONTEXT, *QUESTIONS] * 4, kind="wordpiece", vocab_size=80)


@pytest.fixture
def data(tmp_path):
    answered = {text: answer for text, answer in QUESTIONS.items() if answer}
    for version, questions in (("v1.1", answered), ("v2.0", QUESTIONS)):
        for split in ("train", "dev"):
            (tmp_path / f"{split}-{version}.json").write_text(json.dumps(content(questions)))
    return tmp_path


@pytest.fixture
def dataset(data, tokenizer, encoding_spec):
    def make(**changes):
        read = encoding_spec(tokenizer, max_seq_length=32, padded_lengths=(), cls_last=False)
        return squad_dataset.Dataset(str(data), {"n_best_size": K}, FIELDS | changes, read)

    return make


def certain(dataset, split="dev"):
    """Predictions of a model that is certain of every label."""
    windows = dataset.windows[split]
    rows = np.full((len(windows), 4 * K + 1), -np.inf, np.float32)
    rows[:, K : 2 * K] = rows[:, 3 * K : 4 * K] = 0
    answerable = windows.labels[:, 0] != windows.cls
    for side, column in enumerate((0, 2 * K)):
        rows[answerable, column] = 9
        rows[answerable, column + K] = windows.labels[answerable, side]
    # Somewhere in the context, with less.
    rows[~answerable, 0] = rows[~answerable, 2 * K] = 1
    rows[~answerable, K] = rows[~answerable, 3 * K] = windows.context_begin[~answerable]
    rows[:, -1] = np.where(answerable, 2, 12)
    return rows


def test_a_window_is_an_example(dataset):
    found = dataset()
    assert found.name == "squad2"
    assert len(found.batches["train"].pairs) == len(found.windows["train"]) > len(QUESTIONS)
    assert found.batches["train"].labels.shape == (len(found.windows["train"]), 2)
    _, batch = next(found.batches["train"].training_batches())
    for row, labels in zip(batch["answer_places"], batch["labels"], strict=True):
        assert row[0] == 2
        assert set(row[labels].tolist()) in ({1}, {2})
    _, batch = next(found.batches["dev"].evaluation_batches())
    assert "labels" not in batch


@pytest.mark.parametrize("unanswerable", [False, True])
def test_correct_predictions_score_one(dataset, unanswerable, tmp_path):
    found = dataset(unanswerable=unanswerable)
    predicted = certain(found)
    scores = found.score("dev", predicted)
    names = ("exact", "f1", "HasAns_exact", "NoAns_f1") if unanswerable else ("exact_match", "f1")
    assert [scores[name] for name in names] == [1.0] * len(names)
    assert found.headline({"dev/f1": scores["f1"]}) == {"dev/score": 1.0}
    found.write("dev", predicted, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "dev" / "predictions.json").read_text())
    answers = [answer for answer in QUESTIONS.values() if answer or unanswerable]
    assert list(written.values()) == answers


def test_a_given_threshold_is_used(dataset):
    found = dataset(null_threshold=-100.0)
    scores = found.score("dev", certain(found))
    assert scores["null_threshold"] == -100.0
    assert scores["HasAns_exact"] == 0.0
    assert scores["NoAns_exact"] == 1.0


def test_the_best_threshold_may_answer_nothing(dataset):
    """Null odds are differences of logits, here all negative."""
    found = dataset()
    predicted = certain(found)
    predicted[:, [0, 2 * K]], predicted[:, -1] = 9, -1
    for column in (K, 3 * K):
        predicted[:, column] = found.windows["dev"].context_begin + 1
    scores = found.score("dev", predicted)
    assert scores["f1"] == 1 / 4, "one question has no answer"
    assert scores["null_threshold"] < -19


def test_a_context_without_tokens_is_named_with_its_file(dataset, data):
    row = {"id": "none", "question": "?", "answers": [], "is_impossible": True}
    empty = {"data": [{"paragraphs": [{"context": "\u200b\u200d", "qas": [row]}]}]}
    (data / "dev-v2.0.json").write_text(json.dumps(empty))
    with pytest.raises(UserError, match=r"dev-v2\.0\.json: question 'none': its context has no"):
        dataset()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"dev_file": "mine.json"},
            r"no mine\.json in .*: --data expects .* --config\.data\.dev_file",
        ),
        (
            {"unanswerable": False, "train_file": "train-v2.0.json"},
            r"train-v2\.0\.json: got 1 questions without an answer, the first is 'q3'; this",
        ),
    ],
)
def test_a_user_error_is_one_line(dataset, changes, message):
    with pytest.raises(UserError, match=message) as caught:
        dataset(**changes)
    assert "\n" not in str(caught.value)
