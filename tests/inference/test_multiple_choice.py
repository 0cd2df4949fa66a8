"""Multiple choice with a language model: scored tokens, shots, accuracy."""

import json
import types

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.inference import multiple_choice
from bertjax.inference.multiple_choice import Question
from bertjax.inference.sentence_scores import CausalScorer

QUESTIONS = [
    Question("Water is", ("wet", "dry"), 0),
    Question("Fire is", ("cold", "hot", "wet"), 1),
    Question("Ice is", ("cold", "hot"), 0),
]


class Letters:
    def encode_batch(self, texts):
        return [[ord(letter) for letter in text] for text in texts]


@pytest.fixture
def model():
    def score_tokens(params, ids, attention_mask):
        return -np.asarray(ids)[:, 1:].astype(float), None

    return types.SimpleNamespace(
        tokenizer=Letters(), end_id=1, max_length=60, params=None, score_tokens=score_tokens
    )


def test_only_the_tokens_of_an_answer_are_scored(model):
    shares = []
    scores = multiple_choice.score_choices(
        CausalScorer(model),
        QUESTIONS,
        ["", "", ""],
        batch_size=2,
        progress=lambda share, text: shares.append(share),
    )
    expected = [[-sum(map(ord, f" {c}")) for c in q.choices] for q in QUESTIONS]
    assert scores == expected
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_accuracy_by_sum_and_by_byte():
    scores = [[-1.0, -2.0], [-4.0, -3.3, -5.0], [-3.9, -3.0]]
    found = multiple_choice.compute_accuracies(QUESTIONS, scores)
    assert found["accuracy"] == pytest.approx(2 / 3)
    # Per byte: 1/3 < 2/3; 1 < 1.1; 0.975 < 1.
    assert found["accuracy_per_byte"] == pytest.approx(2 / 3)
    assert found["chance"] == pytest.approx((1 / 2 + 1 / 3 + 1 / 2) / 3)


def test_shots_are_other_questions_with_their_answers():
    before = multiple_choice.sample_shots(QUESTIONS, QUESTIONS, 2, seed=0)
    assert before == multiple_choice.sample_shots(QUESTIONS, QUESTIONS, 2, seed=0)
    assert sorted(before[0].split("\n\n")) == ["", "Fire is hot", "Ice is cold"]
    assert multiple_choice.sample_shots(QUESTIONS, QUESTIONS, 0, seed=0) == ["", "", ""]
    with pytest.raises(UserError, match="too few examples: got 3 shots, expected at most 2"):
        multiple_choice.sample_shots(QUESTIONS, QUESTIONS, 3, seed=0)


def test_a_question_that_is_too_long_is_refused(model):
    model.max_length = 11
    with pytest.raises(UserError, match=r"question is too long: got 12 tokens, .* 10; shorten"):
        multiple_choice.score_choices(CausalScorer(model), QUESTIONS, ["", "", ""], batch_size=2)


def test_a_file_of_questions(tmp_path):
    path = tmp_path / "questions.jsonl"
    rows = [{"question": q.text, "choices": q.choices, "answer": q.answer} for q in QUESTIONS]
    path.write_text("\n".join([*map(json.dumps, rows), ""]))
    found = multiple_choice.read_questions(str(path))
    assert found == QUESTIONS
    assert [question.where for question in found] == [f"{path}:{n}" for n in (1, 2, 3)]
    wrong = (rows[0] | {"answer": 2}, rows[0] | {"choices": ["hot", " "]}, {"question": "x"})
    for line in ("{", "[]", *map(json.dumps, wrong)):
        path.write_text(line)
        with pytest.raises(UserError, match=r'jsonl:1: expected \{"question"'):
            multiple_choice.read_questions(str(path))
    with pytest.raises(UserError, match=r"no file .*absent: expected JSON lines"):
        multiple_choice.read_questions(str(tmp_path / "absent"))
