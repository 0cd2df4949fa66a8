"""bertjax evaluate sts: cosines of sentence embeddings, compared with scores."""

import contextlib
import io
import json
import pathlib

import numpy as np
import pytest

import bertjax
from bertjax import cli
from bertjax.errors import UserError
from bertjax.inference import similarity
from bertjax.tasks.sequence.examples import SequenceExamples

RUN = pathlib.Path(__file__).parent.parent / "data_fixtures" / "saved_runs" / "run"
PAIRS = [
    ("the cat sat on the mat", "a dog, sat", 4.5),
    ("a dog, sat", "the cat sat on the mat", 3.0),
    ("nine elephants", "the cat sat on the mat", 1.5),
    ("the the the", "nine elephants", 0.5),
    ("dogs", "dogs", 5.0),
]
NO_COLUMNS = {"text": "", "text_pair": "", "label": ""}


def run_cli(*words) -> tuple[int, str, str]:
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        status = cli.main([str(word) for word in words])
    return status, out.getvalue(), errors.getvalue()


def test_correlations_are_those_of_the_cosines(tmp_path):
    """Of a table with columns of other names, against the encoder applied by hand."""
    table = tmp_path / "pairs.csv"
    rows = [f'"{a}","{b}",{score},x' for a, b, score in PAIRS]
    table.write_text("\n".join(["left,right,gold,note", *rows, ""]))
    columns = ("--text", "left", "--text_pair", "right", "--label", "gold")
    words = ("evaluate", "sts", "--model", RUN, "--data", table, *columns)
    words += ("--precision", "float32", "--batch_size", 8)
    status, out, errors = run_cli(*words, "--json")
    assert (status, errors) == (0, "")
    found = json.loads(out)

    bert = bertjax.load(RUN, precision="float32")

    def embed(text):
        sequence = np.asarray(bert(bert.tokenizer(text, max_length=24)).sequence)[0]
        vector = sequence[: len(bert.tokenizer.encode_batch([text])[0]) + 2].mean(axis=0)
        return vector / np.linalg.norm(vector)

    cosines = np.array([embed(a) @ embed(b) for a, b, _ in PAIRS])
    scores = np.array([score for *_, score in PAIRS])
    assert found["pearson_cosine"] == pytest.approx(np.corrcoef(cosines, scores)[0, 1], abs=1e-5)
    # The first two pairs have the same cosine, and share their mean rank.
    ranks = [(np.sum(cosines < c - 1e-6) + np.sum(cosines < c + 1e-6)) / 2 for c in cosines]
    expected = np.corrcoef(ranks, np.argsort(np.argsort(scores)))[0, 1]
    assert found["spearman_cosine"] == pytest.approx(expected, abs=1e-6)
    assert (found["pairs"], found["truncated"]) == (5, 0)

    status, out, _ = run_cli(*words, "--max_length", "4", "--pooling", "cls")
    assert status == 0
    printed = dict(line.split() for line in out.splitlines())
    assert list(printed) == ["pearson_cosine", "spearman_cosine", "pairs", "truncated"]
    assert int(printed["truncated"]) > 0
    options = {"text": "left", "text_pair": "right", "label": "gold"}
    again = bertjax.evaluate(
        *("sts", str(RUN), str(table)), **options, max_length=4, pooling="cls", precision="float32"
    )
    assert float(printed["pearson_cosine"]) == pytest.approx(again["pearson_cosine"], abs=1e-4)
    assert abs(again["pearson_cosine"] - found["pearson_cosine"]) > 1e-3

    short = [(embed(a)[:3], embed(b)[:3]) for a, b, _ in PAIRS]
    cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in short]
    again = bertjax.evaluate("sts", str(RUN), str(table), **options, dim=3, precision="float32")
    expected = np.corrcoef(cosines, scores)[0, 1]
    assert again["pearson_cosine"] == pytest.approx(expected, abs=1e-5)


def test_sentences_of_several_pairs_are_embedded_once():
    calls = []

    class Letters:
        """The share of each of two letters."""

        def embed(self, texts, *, total, prompt):
            calls.append((list(texts), total))
            rows = np.array([[text.count("a"), text.count("b")] for text in texts], float)
            yield from np.split(rows / np.linalg.norm(rows, axis=1, keepdims=True), [1])

    pairs = SequenceExamples((["a", "ab", "b"], ["b", "a", "b"]), None, ["0", "1", "2"])
    found = similarity.similarities(Letters(), pairs)
    np.testing.assert_allclose(found, [0, np.sqrt(0.5), 1])
    assert calls == [(["a", "ab", "b"], 3)]


def write_glue(folder: pathlib.Path) -> pathlib.Path:
    (folder / "STS-B").mkdir(parents=True)
    header = "index\tsentence1\tsentence2\tscore"
    for split, score in (("train", 1), ("dev", 2)):
        rows = [f'{number}\tA "man.\tsings\t{score}.{number}' for number in range(3)]
        (folder / "STS-B" / f"{split}.tsv").write_text("\n".join([header, *rows, ""]))
    return folder


def test_the_dev_split_of_glue_is_read(tmp_path):
    folder = write_glue(tmp_path / "glue")
    dev = similarity.read(str(folder), NO_COLUMNS)
    assert dev.texts == (['A "man.'] * 3, ["sings"] * 3)
    np.testing.assert_allclose(dev.labels, [2.0, 2.1, 2.2])
    one_file = similarity.read(str(folder / "STS-B" / "train.tsv"), NO_COLUMNS)
    assert one_file.texts == dev.texts
    np.testing.assert_allclose(one_file.labels, [1.0, 1.1, 1.2])
    with pytest.raises(UserError, match="--label: got 'score', expected none with a folder of"):
        similarity.read(str(folder), NO_COLUMNS | {"label": "score"})


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("sentence1\tsentence2\tscore\na\tb\t1\n", {}, "pairs: got 1, expected 2 or more"),
        ("sentence1\tsentence2\tscore\na\tb\tgood\n", {}, ":2: label: got 'good', expected a num"),
        ("sentence1\tsentence2\tscore\na\t\t1\n", {}, ":2: column 'sentence2' is empty"),
        ("a\tb\tscore\nx\ty\t1\n", {}, "cannot detect the column of the texts among a, b, score"),
        ("a\tb\tscore\nx\ty\t1\n", {"text": "c"}, "has no column 'c': got a, b, score"),
        ("text\tb\tscore\nx\ty\t1\n", {}, "'text', of text, b, score; expected two"),
    ],
)
def test_malformed_tables(tmp_path, text, columns, message):
    path = tmp_path / "pairs.tsv"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        similarity.read(str(path), NO_COLUMNS | columns)
    assert "config.task" not in str(caught.value)


def test_data_that_does_not_exist(tmp_path):
    with pytest.raises(UserError, match=r"no file or folder .* expects the folder with GLUE's"):
        similarity.read(str(tmp_path / "absent"), NO_COLUMNS)
    with pytest.raises(UserError, match="no STS-B/ in"):
        similarity.read(str(tmp_path), NO_COLUMNS)
    folder = write_glue(tmp_path / "glue")
    with pytest.raises(UserError, match="pooling: got 'max', expected one of mean, weighted, cls"):
        bertjax.evaluate("sts", str(RUN), str(folder), pooling="max")
