"""SQuAD's layout in Chinese: answers are substrings of the context, without added spaces."""

# ruff: noqa: RUF001 - Chinese has punctuation of its own

import json

import numpy as np
import pytest

from bertjax import config as configs
from bertjax.metrics import answers as metrics_answers
from bertjax.runs import finetune, finetune_job
from bertjax.runtime.interrupt import Interrupt
from bertjax.tasks.squad import dataset as squad_dataset
from bertjax.tokenizers import tokenizer as tokenizers

CONTEXT = "李明于１９９８年在杭州的西湖边开了一家茶馆，取名“龘井轩”，店里有GPU Cloud计算机三台。"
QUESTIONS = {
    "茶馆是哪一年开的？": "１９９８年",
    "茶馆开在哪里？": "杭州的西湖边",
    "茶馆叫什么名字？": "龘井轩",
    "店里有什么？": "GPU Cloud计算机三台",
    "谁开了茶馆？": "李明",
}
RARE = "龘"
FIELDS = {
    "unanswerable": False,
    "on_mismatch": "stop",
    "doc_stride": 8,
    "max_query_length": 12,
    "max_answer_length": 20,
    "null_threshold": None,
} | {f"{split}_file": "" for split in ("train", "dev", "test")}
K = 2


@pytest.fixture
def data(tmp_path):
    rows = [
        {
            "id": f"问{n}",
            "question": text,
            "answers": [{"text": a, "answer_start": CONTEXT.find(a)}],
        }
        for n, (text, a) in enumerate(QUESTIONS.items())
    ]
    content = {"data": [{"title": "茶馆", "paragraphs": [{"context": CONTEXT, "qas": rows}]}]}
    for split in ("train", "dev"):
        path = tmp_path / f"{split}-v1.1.json"
        path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return tmp_path


def own_vocabulary(folder):
    """Characters and two pieces of words; one character is missing."""
    characters = sorted(set(CONTEXT + "".join(QUESTIONS)) - {RARE, " "})
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "gp", "##u", "cloud", "1998"]
    (folder / "vocab.txt").write_text("\n".join([*pieces, *characters, ""]), encoding="utf-8")
    return folder / "vocab.txt"


@pytest.fixture(params=["own", "released"])
def tokenizer(request, tmp_path):
    if request.param == "own":
        return tokenizers.load(own_vocabulary(tmp_path))
    return tokenizers.load(request.getfixturevalue("shared_data") / "kbert" / "vocab.txt")


def certain(windows, labels):
    """Predictions of a model that is certain of these positions."""
    rows = np.full((len(windows), 4 * K + 1), -np.inf, np.float32)
    rows[:, K : 2 * K] = rows[:, 3 * K : 4 * K] = 0
    answerable = windows.labels[:, 0] != windows.cls
    for side, column in enumerate((0, 2 * K)):
        rows[answerable, column] = 9
        rows[answerable, column + K] = labels[answerable, side]
    return rows


@pytest.fixture
def dataset(data, tokenizer, encoding_spec):
    read = encoding_spec(tokenizer, max_seq_length=40, padded_lengths=())
    return squad_dataset.Dataset(str(data), {"n_best_size": K}, FIELDS, read)


def test_answers_are_substrings_of_the_context(dataset, tmp_path):
    predicted = certain(dataset.windows["dev"], dataset.windows["dev"].labels)
    dataset.write("dev", predicted, tmp_path / "out")
    text = (tmp_path / "out" / "dev" / "predictions.json").read_text(encoding="utf-8")
    assert list(json.loads(text).values()) == list(QUESTIONS.values())
    assert "李明" in text
    scores = dataset.score("dev", predicted)
    assert scores == {"exact_match": 1.0, "f1": 1.0, "character_f1": 1.0}


def test_partly_correct_answers_are_scored_by_characters(dataset):
    windows = dataset.windows["dev"]
    short = windows.labels.copy()
    long = short[:, 1] > short[:, 0]
    short[long, 1] -= 1
    scores = dataset.score("dev", certain(windows, short))
    assert scores["exact_match"] == 0.0
    assert scores["f1"] == pytest.approx(0.1)  # the word GPU of one of five
    assert 0.5 < scores["character_f1"] < 1.0
    values = {f"dev/{name}": value for name, value in scores.items()}
    assert dataset.headline(values) == {"dev/score": scores["character_f1"]}


@pytest.mark.parametrize(
    ("predicted", "answers", "expected"),
    [
        ("西湖边", ("杭州的西湖边",), 2 / 3),  # 3 of 3, and 3 of 6
        ("“西湖”。", ("西湖",), 1.0),
        ("GPU Cloud三台", ("gpu cloud 三台",), 1.0),
        ("cloud三", ("GPU Cloud三台",), 2 / 3),  # 2 of 2, and 2 of 4
        ("北京", ("西湖", "杭州"), 0.0),
        ("", (), 1.0),
        ("西湖", (), 0.0),
    ],
)
def test_characters_in_common_by_hand(predicted, answers, expected):
    found = metrics_answers.character_f1({"q": predicted}, {"q": answers})
    assert found == pytest.approx(100 * expected)


def test_english_answers_have_only_the_official_scores():
    assert not metrics_answers.is_mostly_chinese(
        {"a": ("the mill",), "b": ("the sign 井",), "c": ()}
    )
    assert not metrics_answers.is_mostly_chinese({"a": ("mill", "old mill"), "b": ("轩",)})
    assert metrics_answers.character_f1({}, {"a": ("轩",)}) == 0.0


@pytest.mark.slow
def test_chinese_squad_can_be_fine_tuned(data, tmp_path, random_run):
    run = random_run(tokenizers.load(own_vocabulary(tmp_path)))
    recipe = configs.load_config("configs/squad.py:squad1,tiny", [])
    recipe.num_train_epochs = 1
    recipe.data.max_query_length = 12
    workdir = str(tmp_path / "chinese")
    job = finetune_job.prepare(recipe, init=str(run), data=str(data), workdir=workdir)
    result = finetune.train_seed(job, 0, Interrupt())
    assert set(result["scores"]) >= {"dev/exact_match", "dev/f1", "dev/character_f1"}
    assert result["scores"]["dev/score"] == result["scores"]["dev/character_f1"]
