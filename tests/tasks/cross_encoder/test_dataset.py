"""Examples of a cross-encoder: sequences, labels, metrics, and user errors in one line."""

import json

import numpy as np
import pytest

from bertjax import config as configs
from bertjax.errors import UserError
from bertjax.tasks.cross_encoder.dataset import Dataset, from_inputs
from bertjax.tokenizers import tokenizer

WORDS = ["good", "bad", "fine", "poor", "film", "dull"]
TRIPLES = [
    ("good film", "fine film", "dull", "poor"),
    ("good film", "film", "bad", "dull"),
    ("bad", "poor", "fine film", "good"),
]
HEADER = "query,passage,negative_1,negative_2"
SCORED = [("good film", "fine film", "2"), ("bad", "poor", "1"), ("bad", "fine", "0")]


@pytest.fixture(scope="module")
def spec(encoding_spec):
    return encoding_spec(tokenizer.train([" ".join(WORDS)] * 4, vocab_size=40), padded_lengths=())


@pytest.fixture
def read(tmp_path, spec):
    """Write files, and read them as a data set: `read({name: rows}, loss_type=..., **data)`."""

    def make(files, loss_type="bce", **data):
        for path, (header, rows) in files.items():
            lines = [header, *(",".join(row) for row in rows), ""]
            (tmp_path / path).write_text("\n".join(lines))
        fields = {f"data.{key}": data[key] for key in data} | {"task.loss_type": loss_type}
        config = configs.load_config("cross_encoder:tiny", fields)
        return Dataset(str(tmp_path), dict(config.task), config.data, spec)

    return make


@pytest.mark.parametrize("loss_type", ["bce", "softmax"])
def test_a_positive_and_its_negatives_stay_together(read, spec, loss_type):
    dataset = read({"train.csv": (HEADER, TRIPLES), "dev.csv": (HEADER, TRIPLES)}, loss_type)
    assert dataset.task_fields == {"texts": ("query", "passage"), "candidates_per_example": 3}
    batches = dataset.batches["train"]
    assert (batches.batch_size, batches.group_size, len(batches.pairs)) == (6, 3, 9)
    assert batches.labels.tolist() == [1, 0, 0] * 3
    ids = batches.pairs.rows(np.arange(9), 8)["input_ids"]
    decoded = [spec.tokenizer.decode([i for i in row if i]) for row in ids.tolist()]
    assert decoded[1] == "[CLS] good film [SEP] dull [SEP]"
    assert decoded[6] == "[CLS] bad [SEP] poor [SEP]"


def test_positives_are_ranked_among_the_negatives_of_their_query(read, tmp_path):
    dataset = read({"train.csv": (HEADER, TRIPLES), "dev.csv": (HEADER, TRIPLES)})
    # The first query has the negatives dull (its last score, 0.5), poor and bad.
    scores = np.array([0.5, 9.0, 0.1, 0.9, 0.7, 0.5, 0.3, 0.2, 0.3], np.float32)
    found = dataset.score("dev", scores)
    assert found == {
        "mrr": pytest.approx((1 / 3 + 1 + 1 / 2) / 3),
        "accuracy": pytest.approx(1 / 3),
    }
    assert dataset.headline({"dev/mrr": 0.5}) == {"dev/score": 0.5}
    with pytest.raises(UserError, match="got scores that are NaN or infinite"):
        dataset.score("dev", np.full(9, np.nan))
    dataset.write("dev", scores, tmp_path / "predictions")
    rows = (tmp_path / "predictions" / "dev.jsonl").read_text().splitlines()
    expected = {"query": "good film", "passage": "poor", "true": 0.0}
    assert json.loads(rows[2]) == expected | {"score": pytest.approx(0.1)}


def test_scores_are_mapped_to_probabilities(read):
    scored = ("query,passage,label", SCORED)
    dataset = read({"train.csv": scored, "dev.csv": scored})
    assert dataset.batches["train"].labels.tolist() == [1.0, 0.5, 0.0]
    assert dataset.examples["dev"].scores.tolist() == [2.0, 1.0, 0.0]
    assert dataset.task_fields["candidates_per_example"] == 1
    assert dataset.score("dev", np.array([3.0, 1.0, 2.0]))["spearman"] == pytest.approx(0.5)
    assert dataset.headline({"dev/spearman": 0.5}) == {"dev/score": 0.5}
    assert "mapped to 0 and 1, since they are compared with probabilities" in dataset.findings[-1]


def test_inputs_of_predict_are_pairs(spec):
    lines = [("x:1", "good film\tbad"), ("x:2", json.dumps({"b": "bad " * 20, "a": "good"}))]
    request = from_inputs(lines, "", {"texts": ("a", "b")}, {}, spec)
    assert request.answers(np.array([0.5, -2.0])) == [
        {"a": "good film", "b": "bad", "score": 0.5},
        {"a": "good", "b": "bad " * 20, "score": -2.0, "truncated": True},
    ]


PAIRS = {"train.csv": ("query,passage", [row[:2] for row in TRIPLES])}
LISTS = {"train.csv": (HEADER, TRIPLES)}
SCORES = {"train.csv": ("query,passage,score", SCORED)}
BOTH = {"train.csv": ("query,passage,negative,score", [(*r[:2], "fine", "1") for r in SCORED])}


@pytest.mark.parametrize(
    ("files", "options", "printed"),
    [
        (PAIRS, {}, "expected hard negatives .* or scores of the pairs"),
        (LISTS | {"dev.csv": PAIRS["train.csv"]}, {}, "dev: got the columns query, passage"),
        (SCORES, {"loss_type": "softmax"}, "expected hard negatives"),
        (BOTH, {}, r"got scores \(score\) and hard negatives \(negative\), .* choose --label"),
        (SCORES, {"label": "score", "negative": "query"}, "or set --config.task.loss_type=softmax"),
    ],
)
def test_user_errors_are_one_line(read, files, options, printed):
    with pytest.raises(UserError, match=printed) as error:
        read(files, **options)
    assert "\n" not in str(error.value)
