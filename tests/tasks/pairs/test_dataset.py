"""Tables of text pairs: columns, kinds of examples, metrics, and user errors in one line."""

import json

import numpy as np
import pytest

from bertjax import config as configs
from bertjax.errors import UserError
from bertjax.tasks.pairs.dataset import Dataset, from_inputs
from bertjax.tasks.pairs.ranks import positive_ranks
from bertjax.tokenizers import tokenizer as tokenizers

WORDS = ["good", "bad", "fine", "poor", "film", "dull"]
PAIRS = [("good film", "fine film"), ("bad", "poor"), ("dull film", "poor film"), ("bad", "dull")]
SCORED = [(*pair, str(score)) for pair, score in zip(PAIRS, (5.0, 4.0, 2.5, 0.0), strict=True)]


@pytest.fixture(scope="module")
def spec(encoding_spec):
    tokenizer = tokenizers.train([" ".join(WORDS)] * 4, vocab_size=40)
    return encoding_spec(tokenizer, padded_lengths=())


@pytest.fixture
def read(tmp_path, spec):
    """Write files, and read them as a data set: `read({name: rows}, task=..., data field=...)`."""

    def make(files, name="", task=(), **data):
        for path, (header, rows) in files.items():
            lines = [header, *(",".join(row) for row in rows), ""]
            (tmp_path / path).write_text("\n".join(lines))
        config = configs.load_config("pairs:tiny", {f"data.{key}": data[key] for key in data})
        return Dataset(str(tmp_path / name), dict(config.task) | dict(task), config.data, spec)

    return make


def test_pairs_without_scores_are_contrastive(read, spec):
    triples = [(*pair, "fine") for pair in PAIRS]
    dataset = read(
        {
            "train.csv": ("anchor,positive,negative", triples),
            "dev.csv": ("anchor,positive", PAIRS),
        }
    )
    assert dict(dataset.task_fields) == {
        "loss_type": "contrastive",
        "columns": ("anchor", "positive"),
        "texts_per_example": 3,
    }
    batches = dataset.batches["train"]
    assert (batches.batch_size, batches.num_examples) == (3 * spec.batch_size, 12)
    _, batch = next(batches.training_batches())
    # Equal texts have equal labels; the texts of an example are consecutive.
    rows = batch["input_ids"].reshape(2, 3, -1)
    for row, own in zip(rows, batch["labels"].reshape(2, 3), strict=True):
        assert [spec.tokenizer.decode(ids[1:3].tolist()).split()[0] for ids in row][2] == "fine"
        assert own[2] == batch["labels"][2]
    assert dataset.batches["dev"].num_examples == 8
    assert "ranks of the positives" in dataset.findings[0]


def test_prompts_are_put_before_anchors_and_before_other_texts(read, spec):
    triples = [(*pair, "fine") for pair in PAIRS]
    prompts = {"query_prompt": "poor ", "document_prompt": "dull "}
    files = {"train.csv": ("anchor,positive,negative", triples)}
    dataset = read(files | {"dev.csv": ("anchor,positive", PAIRS)}, task=prompts)
    for split, group in (("train", 3), ("dev", 2)):
        sequences = dataset.batches[split].pairs
        rows = sequences.rows(np.arange(len(sequences)), 16)["input_ids"]
        firsts = [spec.tokenizer.decode(row[1:].tolist()).split()[0] for row in rows]
        assert firsts == ["poor", *["dull"] * (group - 1)] * 4


def test_scored_pairs(read, tmp_path):
    dataset = read({"pairs.csv": ("sentence1,sentence2,score", SCORED * 3)}, "pairs.csv")
    assert dataset.task_fields["loss_type"] == "cosent"
    train, dev = dataset.examples["train"], dataset.examples["dev"]
    assert len(train) + len(dev) == 12
    # The pairs of an anchor stay together.
    assert {*train.texts[0], *dev.texts[0]} == {"good film", "bad", "dull film"}
    assert not {*train.texts[0]} & {*dev.texts[0]}
    scores = train.scores
    assert dataset.batches["train"].labels.tolist() == np.repeat(scores, 2).tolist()
    dataset = read(
        {
            "train.csv": ("text,text_pair,label", SCORED),
            "dev.csv": ("text,text_pair,label", SCORED),
        },
        task={"loss_type": "cosine", "matryoshka_dims": (2,)},
    )
    assert dataset.examples["train"].scores.tolist() == [1.0, pytest.approx(0.8), 0.5, 0.0]
    assert dataset.examples["dev"].scores.tolist() == [5.0, 4.0, 2.5, 0.0]
    assert "from 0 to 5, mapped to 0 and 1" in dataset.findings[-1]
    angles = np.array([0.1, 0.6, 0.5, 1.0])
    second = np.stack([np.cos(angles), np.sin(angles), 3 * angles], axis=1)
    first = np.tile([1.0, 0.0, 0.0], (4, 1))
    vectors = np.stack([first, second], axis=1).reshape(8, 3).astype(np.float32)
    scores = dataset.score("dev", vectors)
    assert scores["spearman_cosine_2"] == pytest.approx(0.8)
    assert set(scores) == {
        *("spearman_cosine", "pearson_cosine", "spearman_cosine_2", "pearson_cosine_2"),
    }
    assert dataset.headline({"dev/spearman_cosine": 0.25}) == {"dev/score": 0.25}
    dataset.write("dev", vectors, tmp_path / "predictions")
    rows = (tmp_path / "predictions" / "dev.jsonl").read_text().splitlines()
    expected = {"text": "good film", "text_pair": "fine film", "true": 5.0}
    cosine = np.cos(0.1) / np.sqrt(1 + 0.09)
    assert json.loads(rows[0]) == expected | {"cosine": pytest.approx(cosine, abs=1e-6)}


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


DISTILLED = [
    {"query": a, "positive": b, "negatives": ["fine", "good"], "scores": [n, 0.5, -n]}
    for n, (a, b) in enumerate(PAIRS)
]


def test_a_teacher_scores_the_candidates_of_a_row(read, tmp_path):
    write_lines(tmp_path / "train.jsonl", DISTILLED)
    dataset = read({}, "train.jsonl", task={"loss_type": "kl"})
    train = dataset.examples["train"]
    assert dataset.task_fields["texts_per_example"] == 4
    assert train.columns == ("query", "positive", "negatives_1", "negatives_2")
    numbers = [PAIRS.index((row[0], row[1])) for row in zip(*train.texts, strict=True)]
    labels = dataset.batches["train"].labels.reshape(-1, 4)
    assert labels.tolist() == [[0, n, 0.5, -n] for n in numbers]
    # The dev split is ranked.
    dev = dataset.examples["dev"]
    vectors = np.random.default_rng(0).normal(size=(4 * len(dev), 5)).astype(np.float32)
    assert set(dataset.score("dev", vectors)) == {"mrr", "accuracy"}


def test_cells_of_csv_are_json_and_margins_are_numbers(read, tmp_path):
    quoted = [(*pair, "fine", f'"[{n}, 2.5]"') for n, pair in enumerate(PAIRS)]
    margins = [(*pair, "fine", f"{n - 2.5}") for n, pair in enumerate(PAIRS)]
    found = []
    for rows in (quoted, margins):
        files = {"train.csv": ("query,positive,negative,scores", rows)}
        files |= {"dev.csv": ("sentence1,sentence2,score", SCORED)}
        dataset = read(files, task={"loss_type": "margin_mse"})
        found.append(-np.diff(dataset.examples["train"].teacher_scores)[:, 0])
        assert dataset.examples["dev"].scores.tolist() == [5.0, 4.0, 2.5, 0.0]
    # The scores of the dev split are compared with dot products, which this loss trains.
    products = np.array([[2, 3], [1, 4], [3, 1], [1, 0]], np.float32)
    vectors = np.stack([products[:, :1], products[:, 1:]], axis=1).reshape(8, 1)
    pearson = pytest.approx(0.9887, abs=1e-4)
    scores = dataset.score("dev", vectors)
    assert scores == {"spearman_dot": pytest.approx(1.0), "pearson_dot": pearson}
    assert dataset.headline({"dev/spearman_dot": 0.25}) == {"dev/score": 0.25}
    dataset.write("dev", vectors, tmp_path / "predictions")
    row = json.loads((tmp_path / "predictions" / "dev.jsonl").read_text().splitlines()[0])
    assert (row["dot"], row["true"]) == (6.0, 5.0)
    assert found[0].tolist() == found[1].tolist() == [-2.5, -1.5, -0.5, 0.5]


@pytest.mark.parametrize(
    ("changes", "loss", "printed"),
    [
        ({"scores": None}, "kl", "got the columns query, positive, negatives_1, negatives_2, exp"),
        ({"negatives": None}, "kl", "expected an anchor, a positive and hard negatives"),
        ({"scores": [1, 2]}, "kl", r":2: scores: got 2 score\(s\), expected a list of 3: that of"),
        ({"scores": 1.5}, "margin_mse", r":2: scores: got 1 score\(s\), expected a list of 3"),
        ({"scores": [1, 2, "x"]}, "kl", ":2: label: got 'x', expected a number"),
        ({"negatives": ["fine"]}, "kl", ":2: negatives: got 1 texts, expected a list of 2, as"),
        ({"negatives": "fine"}, "kl", ":2: negatives: got 'fine', expected a list of 2"),
        (
            {},
            "",
            r"got scores \(scores\) and hard negatives \(negatives_1, .*loss_type=margin_mse",
        ),
    ],
)
def test_malformed_scores_of_a_teacher_are_one_line(read, tmp_path, changes, loss, printed):
    rows = [DISTILLED[0], DISTILLED[1] | changes, *DISTILLED[2:]]
    missing = {name for name, value in changes.items() if value is None}
    rows = [{name: row[name] for name in row if name not in missing} for row in rows]
    write_lines(tmp_path / "train.jsonl", rows)
    with pytest.raises(UserError, match=printed) as error:
        read({}, "train.jsonl", task={"loss_type": loss})
    assert "\n" not in str(error.value)


def test_one_column_is_its_own_positive_and_dev_has_scores(read):
    dataset = read(
        {
            "train.csv": ("text", [(word,) for word in WORDS]),
            "dev.csv": ("sentence1,sentence2,score", SCORED),
        }
    )
    assert dataset.task_fields["loss_type"] == "contrastive"
    assert dataset.task_fields["columns"] == ("sentence1", "sentence2")
    assert dataset.batches["train"].labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert dataset.examples["dev"].scores is not None
    assert "each text is its own positive" in dataset.findings[0]


def test_ranks_are_among_all_distinct_texts():
    ids = np.array([[0, 1, 9], [2, 3, 9], [0, 4, 9], [5, 3, 0]])
    vectors = {
        0: (1, 0),
        1: (0.9, 0.2),
        2: (0, 1),
        3: (0.1, 1),
        4: (2, 2),
        5: (0.8, 0.6),
        9: (1, 1),
    }
    rows = np.array([[vectors[i] for i in row] for row in ids], np.float32)
    # Anchor 0 has two positives, 1 and 4, neither of which precedes the other. Text 9 has the
    # vector of 4 and precedes it. Text 0 is a candidate in the last row, and excluded in its own.
    assert positive_ranks(rows, ids).tolist() == [1, 1, 2, 5]
    assert positive_ranks(np.ones((4, 3, 2), np.float32), ids).tolist() == [3, 5, 3, 5]
    # By dot product the longer text 9 precedes text 1, and texts 4 and 9 precede text 3.
    assert positive_ranks(rows, ids, normalize=False).tolist() == [2, 3, 1, 5]
    with pytest.raises(UserError, match="got scores that are NaN or infinite: training has"):
        positive_ranks(np.full_like(rows, np.nan), ids)


def test_inputs_of_predict_are_pairs(spec):
    task = {"columns": ("a", "b"), "loss_type": "cosent"}
    lines = [("x:1", "good film\tbad"), ("x:2", json.dumps({"b": "bad " * 20, "a": "good"}))]
    request = from_inputs(lines, "", task, {}, spec)
    vectors = np.array([[1, 0], [1, 1], [1, 0], [0, 2]], np.float32)
    assert request.answers(vectors) == [
        {"a": "good film", "b": "bad", "cosine": pytest.approx(0.5**0.5)},
        {"a": "good", "b": "bad " * 20, "cosine": 0.0, "truncated": True},
    ]
    request = from_inputs(lines[:1], "", task | {"loss_type": "margin_mse"}, {}, spec)
    assert request.answers(2 * vectors[:2]) == [{"a": "good film", "b": "bad", "dot": 4.0}]


ONE = {"train.csv": ("text", [("good",), ("bad",)])}
TWO = {"train.csv": ("anchor,positive", PAIRS)}
SAME_QUERY = ("anchor,positive", [("bad", "poor"), ("bad", "dull")])
SAME_POSITIVE = ("anchor,positive", [("bad", "poor"), ("dull", "poor")])
THREE = {"train.csv": ("sentence1,sentence2,score", SCORED)}


@pytest.mark.parametrize(
    ("files", "options", "printed"),
    [
        (ONE, {}, "got one column of text, 'text', and no dev file"),
        (ONE | {"dev.csv": ONE["train.csv"]}, {}, "expected pairs to evaluate embeddings"),
        (ONE, {"task": {"loss_type": "cosine"}}, "expected two for cosine"),
        (TWO, {"task": {"loss_type": "cosent"}}, "expected one with scores"),
        (TWO, {"label": "gold"}, "got 'gold', which neither trains nor evaluates"),
        (TWO, {"negative": "other"}, "got 'other', expected a column of"),
        (TWO, {}, r", dev: got 1 pair\(s\) without candidates .* larger --config.data.validation"),
        (TWO | {"dev.csv": SAME_QUERY}, {}, r"dev: got 2 pair\(s\) .* column negative$"),
        (TWO | {"dev.csv": SAME_POSITIVE}, {}, r"dev: got 2 pair\(s\) without candidates"),
        (
            THREE,
            {"negative": "score", "task": {"loss_type": "cosent"}},
            "expected none, since every pair has a score",
        ),
        (THREE | {"dev.csv": THREE["train.csv"]}, {"split_seed": "3"}, "got 3, expected none"),
        ({"train.csv": ("text,text_pair,score", [("a", "b", "c")])}, {}, "got 'c', expected a num"),
    ],
)
def test_user_errors_are_one_line(read, files, options, printed):
    with pytest.raises(UserError, match=printed) as error:
        read(files, **options)
    assert "\n" not in str(error.value)
