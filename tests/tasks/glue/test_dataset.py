"""GLUE datasets: encoding, scores, prediction files, and inputs of predict."""

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.tasks.glue import dataset as glue_dataset
from bertjax.tasks.glue.table import glue_task


class Letters:
    """A tokenizer of single letters."""

    cls_id, sep_id, pad_id, pair_separators = 1, 2, 0, 1

    def encode_batch(self, texts):
        return [[ord(letter) - 60 for letter in text] for text in texts]


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "RTE"
    folder.mkdir()
    header = "index\tsentence1\tsentence2"
    rows = [(f"ab{'c' * n}", "de", "entailment" if n % 2 else "not_entailment") for n in range(5)]
    for name, size in (("train", 5), ("dev", 3)):
        lines = [f"{n}\t" + "\t".join(row) for n, row in enumerate(rows[:size])]
        (folder / f"{name}.tsv").write_text("\n".join([f"{header}\tlabel", *lines]))
    (folder / "test.tsv").write_text(f"{header}\n7\tab\tde\n9\tb\td\n")
    return str(tmp_path)


@pytest.fixture
def dataset(data, encoding_spec):
    def make(name="rte", **changes):
        fields = {"knowledge": "", "triples_per_entity": 2}
        fields |= {key: changes.pop(key) for key in list(changes) if key in fields}
        return glue_dataset.Dataset(
            data, {"dataset": name}, fields, encoding_spec(Letters(), **changes)
        )

    return make


def test_every_existing_split_is_read(dataset):
    found = dataset()
    assert (found.name, found.dev, found.test) == ("rte", ("dev",), ("test",))
    assert {name: len(batches.pairs) for name, batches in found.batches.items()} == {
        "train": 5,
        "dev": 3,
        "test": 2,
    }
    assert found.batches["train"].padded_lengths == (8, 12)
    assert (found.batches["train"].batch_size, found.batches["dev"].batch_size) == (2, 3)
    assert found.batches["train"].labels.tolist() == [1, 0, 1, 0, 1]
    assert found.batches["test"].labels is None
    assert found.left_out == {"train": (), "dev": (), "test": ()}


def test_only_training_examples_are_subsampled(dataset):
    found = dataset(max_train_examples=2)
    sizes = [len(found.batches[name].pairs) for name in ("train", "dev")]
    assert sizes == [2, 3]


def test_predictions_are_scored_and_written_in_the_servers_format(dataset, tmp_path):
    found = dataset()
    values = {"dev/accuracy": found.score("dev", np.array([1, 1, 1]))["accuracy"]}
    assert values == {"dev/accuracy": pytest.approx(2 / 3)}
    assert found.headline(values) == {"dev/score": pytest.approx(2 / 3)}
    assert found.score("test", np.array([0, 1])) == {}
    found.write("dev", np.array([1, 1, 1]), tmp_path / "out")
    found.write("test", np.array([0, 1]), tmp_path / "out")
    written = (tmp_path / "out" / "test" / "RTE.tsv").read_text()
    assert written == "index\tprediction\n7\tentailment\n9\tnot_entailment\n"
    assert (tmp_path / "out" / "dev" / "RTE.tsv").exists()


def test_knowledge_requires_a_model_with_positions(dataset):
    with pytest.raises(UserError, match=r"config\.data\.knowledge requires a model with absolute"):
        dataset(takes_positions=False, knowledge="graph.spo")


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        ("cola", {"matthews": 1 / 3}),
        ("mrpc", {"accuracy": 2 / 3, "f1": 2 / 3}),
        ("rte", {"accuracy": 2 / 3}),
    ],
)
def test_scores_are_the_official_metrics(dataset, expected):
    predictions, references = np.array([1, 0, 0, 1, 0, 1]), np.array([1, 0, 1, 1, 0, 0])
    assert glue_dataset.scores(glue_task(dataset), predictions, references) == pytest.approx(
        expected
    )


def test_scores_of_a_regression():
    predictions, references = np.array([1.0, 2.0, 4.0]), np.array([0.0, 1.0, 3.0])
    scored = glue_dataset.scores(glue_task("stsb"), predictions, references)
    assert scored == pytest.approx({"pearson": 1.0, "spearman": 1.0})


def test_names_of_classes_in_another_order_are_refused(data, encoding_spec):
    task = {"dataset": "rte", "labels": ("not_entailment", "entailment")}
    with pytest.raises(UserError, match="got not_entailment, entailment, expected them in the ord"):
        glue_dataset.Dataset(data, task, {}, encoding_spec(Letters()))


def encode_inputs(lines, encoding_spec, **task):
    numbered = [(f"line {number}", line) for number, line in enumerate(lines, 1)]
    return glue_dataset.from_inputs(
        numbered, "", {"dataset": "rte"} | task, {}, encoding_spec(Letters())
    )


def test_an_answer_has_the_names_of_the_run(encoding_spec):
    logits = np.log([[1.0, 3.0], [3.0, 1.0]])
    lines = ["a\tb", "c\td"]
    own = encode_inputs(lines, encoding_spec).answers(logits)
    assert [row["label"] for row in own] == ["not_entailment", "entailment"]
    named = encode_inputs(lines, encoding_spec, labels=("Entailment", "NOT ENTAILMENT")).answers(
        logits
    )
    assert [row["label"] for row in named] == ["NOT ENTAILMENT", "Entailment"]
    assert named[0]["probabilities"] == {"Entailment": 0.25, "NOT ENTAILMENT": 0.75}
    with pytest.raises(UserError, match="classes of rte: got no, yes, expected entailment"):
        encode_inputs(lines, encoding_spec, labels=("no", "yes"))


def test_truncated_texts_are_marked(encoding_spec):
    lines = ["a\tb", f"{'a' * 9}\tb", "a\tb"]
    rows = encode_inputs(lines, encoding_spec).answers(np.zeros((3, 2)))
    assert [row.get("truncated", False) for row in rows] == [False, True, False]
