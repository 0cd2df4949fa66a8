"""SuperGLUE datasets: sequences, scores, the mean of the metrics, prediction files, user inputs."""

import json

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.tasks.multiple_choice import dataset as multiple_choice_dataset
from bertjax.tasks.superglue import dataset as superglue_dataset
from bertjax.tokenizers import tokenizer


@pytest.fixture(scope="module")
def words():
    text = "the old mill is by the river . anna came from oslo because it rained is ? she so"
    return tokenizer.train([text] * 4, kind="wordpiece", vocab_size=90)


@pytest.fixture
def spec(encoding_spec, words):
    def make(**changes):
        sizes = {"max_seq_length": 48, "padded_lengths": (), "batch_size": 4, "eval_batch_size": 4}
        return encoding_spec(words, **sizes | changes)

    return make


def decoded(words, batches, number):
    begin = batches.pairs.starts[number]
    ids = batches.pairs.tokens[begin : begin + batches.pairs.lengths[number]]
    return words.decode(ids.tolist())


def test_record_scores_queries_by_their_best_entity(data, spec, words, tmp_path):
    found = superglue_dataset.Dataset(str(data), {"dataset": "record"}, {}, spec())
    assert found.dev == ("dev",)
    assert found.test == ("test",)
    assert dict(found.task_fields) == {"labels": ("0", "1"), "texts": ("passage", "statement")}
    assert found.batches["dev"].num_examples == 6
    logits = np.zeros((6, 2))
    logits[[2, 4], 1] = 1.0  # Lyon, which is right; Oslo, which is wrong
    values = found.score("dev", logits)
    assert values == {"f1": 0.5, "exact_match": 0.5}
    assert found.score("test", logits) == {}
    values = {"dev/f1": 0.75, "dev/exact_match": 0.25, "dev/other": 9.0}
    assert found.headline(values) == {"dev/score": 0.5}
    found.write("dev", logits, tmp_path)
    found.write("test", logits, tmp_path)
    lines = (tmp_path / "test" / "ReCoRD.jsonl").read_text()
    assert lines == '{"idx": 11, "label": "Lyon"}\n{"idx": 12, "label": "Oslo"}\n'
    assert (tmp_path / "dev" / "ReCoRD.jsonl").read_text() == lines


def test_only_the_passage_is_truncated(data, spec, words):
    found = superglue_dataset.Dataset(str(data), {"dataset": "boolq"}, {}, spec(max_seq_length=14))
    assert "is the mill old" in decoded(words, found.batches["dev"], 0)
    assert found.batches["dev"].pairs.lengths.tolist() == [14, 14]


def test_rte_writes_both_diagnostic_sets(data, spec, tmp_path):
    found = superglue_dataset.Dataset(str(data), {"dataset": "rte"}, {}, spec())
    assert found.test == ("test", "diagnostic_broad", "diagnostic_gender")
    for split in found.test:
        assert found.score(split, np.eye(2)[: found.batches[split].num_examples]) == {}
        found.write(split, np.eye(2)[: found.batches[split].num_examples], tmp_path)
    names = sorted(path.name for path in (tmp_path / "test").iterdir())
    assert names == ["AX-b.jsonl", "AX-g.jsonl", "RTE.jsonl"]


def test_copa_by_the_multiple_choice_head(data, spec, words, tmp_path):
    task = {"dataset": "copa", "num_choices": 2}
    found = multiple_choice_dataset.Dataset(str(data), task, {}, spec())
    assert "because it rained" in decoded(words, found.batches["dev"], 0)
    scores = np.array([0.0, 1.0, 0.0, 1.0])  # the second alternative of both
    assert found.score("dev", scores) == {"accuracy": 0.5}
    found.write("test", scores, tmp_path)
    lines = (tmp_path / "test" / "COPA.jsonl").read_text()
    assert lines == '{"idx": 0, "label": 1}\n{"idx": 1, "label": 1}\n'


def test_user_inputs(spec):
    task = {"dataset": "boolq"}
    lines = [("stdin:1", "The mill is old.\tis it old"), ("stdin:2", '{"passage": "x"}')]
    request = superglue_dataset.from_inputs(lines[:1], "", task, {}, spec())
    (answer,) = request.answers(np.array([[0.0, np.log(3)]]))
    assert answer == {
        "passage": "The mill is old.",
        "question": "is it old",
        "label": "true",
        "probabilities": pytest.approx({"false": 0.25, "true": 0.75}),
    }
    with pytest.raises(UserError, match=r'stdin:2: .*expected a JSON object with "passage"'):
        superglue_dataset.from_inputs(lines, "", task, {}, spec())
    json.dumps(answer)
