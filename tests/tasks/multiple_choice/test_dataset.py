"""Multiple-choice datasets: answers of a question stay together; scores; inputs of predict."""

import json

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.tasks.multiple_choice import dataset as multiple_choice_dataset
from bertjax.tokenizers import tokenizer as tokenizers

ARTICLE = "The mill by the river is old. Anna built it. She came from the north."
QUESTIONS = [
    ("Who built the mill?", ["Anna", "the river", "nobody", "the north"], "A"),
    ("She came from _ .", ["the mill", "Anna", "the north", "a river"], "C"),
    ("The mill is _ .", ["new", "old", "far", "red"], "B"),
]


@pytest.fixture(scope="module")
def tokenizer():
    texts = [ARTICLE, *(question for question, *_ in QUESTIONS)]
    return tokenizers.train(texts * 4, kind="wordpiece", vocab_size=80)


@pytest.fixture
def data(tmp_path):
    for split in ("train", "dev", "test"):
        for level, some in (("middle", QUESTIONS[:2]), ("high", QUESTIONS[2:])):
            folder = tmp_path / split / level
            folder.mkdir(parents=True)
            questions, options, answers = (list(column) for column in zip(*some, strict=True))
            content = {"article": ARTICLE, "questions": questions, "options": options}
            content |= {"answers": answers, "id": f"{level}1.txt"}
            (folder / "1.txt").write_text(json.dumps(content))
    return tmp_path


@pytest.fixture
def dataset(data, tokenizer, encoding_spec):
    def make(**changes):
        read = encoding_spec(
            tokenizer, max_seq_length=32, padded_lengths=(), batch_size=8, eval_batch_size=8
        )
        task = {"dataset": "race", "num_choices": 4} | changes
        return multiple_choice_dataset.Dataset(str(data), task, {}, read)

    return make


def test_the_answers_of_a_question_stay_together(dataset):
    found = dataset()
    batches = found.batches["train"]
    assert batches.num_examples == 12
    seen = []
    for _, batch in zip(range(2), batches.training_batches(), strict=False):
        numbers = batch[1]["example_id"].reshape(-1, 4)
        np.testing.assert_array_equal(numbers % 4, [[0, 1, 2, 3]] * 2)
        np.testing.assert_array_equal(numbers // 4, numbers[:, :1] // 4 * np.ones((1, 4)))
        real = batch[1]["example_weight"].reshape(-1, 4)
        assert set(map(tuple, real.tolist())) <= {(1.0,) * 4, (0.0,) * 4}
        seen += numbers[real[:, 0] > 0, 0].tolist()
        np.testing.assert_array_equal(batch[1]["labels"].reshape(-1, 4).sum(axis=1), [1, 1])
    assert sorted(seen) == [0, 4, 8]


def test_the_best_answer_is_scored_overall_and_by_level(dataset, tmp_path):
    found = dataset()
    scores = np.zeros((3, 4))
    scores[[0, 1, 2], [0, 2, 3]] = 1  # the last one is wrong
    values = found.score("dev", scores.reshape(-1))
    assert values == {
        "accuracy": pytest.approx(2 / 3),
        "middle_accuracy": 1.0,
        "high_accuracy": 0.0,
    }
    assert found.headline({"dev/accuracy": 0.5}) == {"dev/score": 0.5}
    found.write("test", scores.reshape(-1), tmp_path / "out")
    written = json.loads((tmp_path / "out" / "test.json").read_text())
    assert list(written.values()) == ["A", "C", "D"]


def test_questions_from_inputs(tokenizer, encoding_spec):
    read = encoding_spec(
        tokenizer, max_seq_length=32, padded_lengths=(), batch_size=4, eval_batch_size=4
    )
    row = {"context": ARTICLE, "question": "Who?", "choices": ["Anna", "the river"]}
    task = {"dataset": "race", "num_choices": 2}
    inputs = multiple_choice_dataset.from_inputs([("stdin:1", json.dumps(row))], "", task, {}, read)
    (output,) = inputs.answers(np.array([0.0, np.log(3)]))
    assert output == row | {"answer": 1, "probabilities": pytest.approx([0.25, 0.75])}
    long = json.dumps(row | {"context": f"{ARTICLE} " * 9})
    inputs = multiple_choice_dataset.from_inputs([("stdin:1", long)], "", task, {}, read)
    assert inputs.answers(np.zeros(2))[0]["truncated"]
    choices = (["one"], [1, 2], None, 2, "ab", {"a": 1, "b": 2})
    for wrong in (*({"choices": value} for value in choices), {"question": 1}):
        with pytest.raises(UserError, match=r"stdin:1: expected strings, and 2 choices;"):
            multiple_choice_dataset.from_inputs(
                [("stdin:1", json.dumps(row | wrong))], "", task, {}, read
            )


def test_another_number_of_answers_is_one_line(dataset):
    with pytest.raises(UserError, match=r"questions have 4 choices, expected 3; set "):
        dataset(num_choices=3)
