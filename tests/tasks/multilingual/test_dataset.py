"""Cross-lingual datasets: files and languages, accuracy by language, choice of epochs, errors."""

import numpy as np
import pytest

from bertjax import config as configs
from bertjax.errors import UserError
from bertjax.tasks.multilingual import dataset as multilingual_dataset
from bertjax.tokenizers import tokenizer


@pytest.fixture(scope="module")
def words():
    text = "it is old new rained wet es ist alt neu regnet the firm grew king came prices fell"
    return tokenizer.train([text] * 4, kind="wordpiece", vocab_size=90)


@pytest.fixture
def make(encoding_spec, words):
    def make(folder, **fields):
        config = configs.load_config(f"configs/multilingual.py:{folder.name},tiny", [])
        with config.unlocked():
            config.data.update(fields)
        spec = encoding_spec(words, max_seq_length=24, padded_lengths=())
        return multilingual_dataset.Dataset(str(folder), config.task, config.data, spec)

    return make


def texts(found, split):
    return list(zip(*found.splits[split].examples.texts, strict=True))


def test_xnli_trains_on_one_language_and_is_scored_in_all(xnli, make, tmp_path):
    found = make(xnli)
    assert texts(found, "train") == [("It rained.", "It was wet."), ("It rained.", "No.")]
    assert found.splits["train"].examples.labels.tolist() == [0, 2]
    assert found.dev == ("dev",)
    assert found.test == ("test",)
    assert dict(found.task_fields) == {
        "labels": ("entailment", "neutral", "contradiction"),
        "texts": ("premise", "hypothesis"),
    }
    assert found.splits["dev"].languages == ["en", "en", "de", "de"]
    assert texts(found, "dev")[0] == ("It is old.", 'It is "new.')  # a quote is a character
    logits = np.eye(3)[[2, 0, 1, 0]]  # both are right in English, none in German
    values = found.score("dev", logits)
    assert values == {"accuracy": 0.5, "de_accuracy": 0.0, "en_accuracy": 1.0}
    values = {f"dev/{name}": value for name, value in values.items()}
    assert found.headline(values) == {"dev/score": 1.0}
    found.write("test", logits, tmp_path)
    assert (tmp_path / "test.tsv").read_text().splitlines() == [
        "language\tindex\tprediction",
        "en\t0\tcontradiction",
        "en\t1\tentailment",
        "de\t0\tneutral",
        "de\t1\tentailment",
    ]


def test_xnli_trains_on_translations(xnli, make):
    found = make(xnli, train_languages=("de",), eval_languages=("de",))
    assert texts(found, "train")[0] == ("Es regnet.", "Es ist nass.")
    assert set(found.splits["dev"].languages) == set(found.splits["test"].languages) == {"de"}
    both = make(xnli, train_languages=("en", "de"))
    assert both.splits["train"].languages == ["en", "en", "de", "de"]
    assert both.headline({"dev/en_accuracy": 0.5, "dev/de_accuracy": 0.0, "dev/accuracy": 9.0}) == {
        "dev/score": 0.25
    }
    # Without a training language in dev, the mean of those that there are.
    other = make(xnli, eval_languages=("de",))
    assert other.headline({"dev/de_accuracy": 0.75, "dev/accuracy": 0.75}) == {"dev/score": 0.75}


def test_the_original_multinli_is_one_file_without_languages(xnli, make):
    lines = ["gold_label\tsentence1\tsentence2", "neutral\ta\tb", "-\tc\td", "entailment\te\tf"]
    (xnli / "train.txt").write_text("\n".join(lines) + "\n")
    found = make(xnli, train_file="train.txt")
    assert texts(found, "train") == [("a", "b"), ("e", "f")]
    assert found.splits["train"].languages == ["en", "en"]
    assert [where.rpartition("/")[2] for where in found.left_out["train"]] == ["train.txt:3"]
    with pytest.raises(UserError, match=r"got en, de, expected one language, as config.data.train"):
        make(xnli, train_file="train.txt", train_languages=("en", "de"))
    with pytest.raises(UserError, match=r"train.txt has no column 'language': expected it in a f"):
        make(xnli, dev_file="train.txt")


def test_mldoc_has_a_file_for_each_language_and_the_classes_of_train(mldoc, make):
    found = make(mldoc)
    assert found.labels == ("CCAT", "GCAT", "MCAT")
    assert texts(found, "train") == [("The firm grew.",), ("The king came.",), ("Prices fell.",)]
    assert found.splits["test"].languages == ["english"] * 3 + ["german"] * 2
    assert found.splits["test"].examples.labels.tolist() == [0, 1, 2, 2, 0]
    values = found.score("test", np.eye(3)[[0, 1, 0, 2, 1]])
    assert values == {
        "accuracy": pytest.approx((2 / 3 + 1 / 2) / 2),
        "english_accuracy": pytest.approx(2 / 3),
        "german_accuracy": 0.5,
    }
    for path in mldoc.glob("*.test"):
        path.unlink()
    assert make(mldoc).test == ()


GERMAN = {"eval_languages": ("german",)}


@pytest.mark.parametrize(
    ("name", "text", "fields", "message"),
    [
        ("german.dev", None, GERMAN, r"no file .*german.dev: --data expects the folder of {lang"),
        ("x", "", {"train_languages": ("dutch",)}, r"no file .*dutch.train.1000: --data expects"),
        ("x", "", {"dev_file": "{language}.val"}, r"no file .*; set --config.data.dev_file for"),
        ("german.dev", "MCAT\ta\nECAT\tb\n", {}, r"german.dev:2: label: got 'ECAT', expected o"),
        ("german.dev", "MCAT\n", {}, r"german.dev:1: got 1 field\(s\), expected 2 or more separat"),
        ("german.dev", "\n", GERMAN, r"got 'german', for which {language}.dev has no example;"),
        ("english.train.1000", "CCAT\ta\n", {}, r"got only the class 'CCAT' in the training fil"),
    ],
)
def test_a_user_error_is_one_line(mldoc, make, name, text, fields, message):
    if text is None:
        (mldoc / name).unlink()
    else:
        (mldoc / name).write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        make(mldoc, **fields)
    assert "\n" not in str(caught.value)


def test_a_missing_language_or_header_of_xnli_is_one_line(xnli, make):
    with pytest.raises(UserError, match=r"eval_languages: got 'sw', for which .* has no example;"):
        make(xnli, eval_languages=("en", "sw"))
    (xnli / "XNLI-1.0" / "xnli.dev.tsv").write_text("a\tb\n")
    with pytest.raises(UserError, match=r"got the columns 'a, b', expected a header line wi"):
        make(xnli)


def test_user_inputs(encoding_spec, words):
    task = {"labels": ("CCAT", "MCAT"), "texts": ("text",)}
    spec = encoding_spec(words, max_seq_length=24, padded_lengths=())
    request = multilingual_dataset.from_inputs([("stdin:1", "Prices fell.")], "", task, {}, spec)
    (answer,) = request.answers(np.array([[0.0, np.log(3)]]))
    assert (answer["text"], answer["label"]) == ("Prices fell.", "MCAT")
    assert answer["probabilities"] == pytest.approx({"CCAT": 0.25, "MCAT": 0.75})
