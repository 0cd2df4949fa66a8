"""Gold labels of windows, used as scores, give the answers of real files."""

import numpy as np
import pytest

from bertjax.metrics.answers import score_squad_v1, score_squad_v2
from bertjax.tasks.squad import answers as squad_answers
from bertjax.tasks.squad import files as squad_files
from bertjax.tasks.squad import windows as squad_windows
from bertjax.tasks.squad.files import SquadQuestions
from bertjax.tokenizers import tokenizer


def gold(windows):
    """Scores of a perfect model: [CLS] in windows without the answer."""
    starts, ends = windows.labels[:, :1], windows.labels[:, 1:]
    empty = windows.labels[:, 0] == windows.cls
    scores = np.full(starts.shape, 5.0, np.float32)
    return scores, starts, scores, ends, np.where(empty, 10.0, -10.0)


CHINESE = ["北京是中国的首都。上海在东边。", "水在零度结冰。"]


def test_gold_labels_of_chinese_text_score_100(shared_data):
    vocabulary = tokenizer.load(shared_data / "kbert" / "vocab.txt")
    rows = [(0, "上海"), (0, "中国的首都"), (1, "零度"), (1, "")]
    questions = SquadQuestions(
        ids=list("abcd"),
        titles=[""] * 4,
        questions=["哪里"] * 4,
        contexts=CHINESE,
        context_of=np.array([context for context, _ in rows]),
        answers=[(text,) if text else () for _, text in rows],
        answer_starts=[(CHINESE[context].index(text),) if text else () for context, text in rows],
        impossible=np.array([not text for _, text in rows]),
    )
    sizes = {"max_seq_length": 15, "doc_stride": 4, "max_query_length": 2}
    windows = squad_windows.encode(questions, vocabulary, **sizes)
    found = squad_answers.find(questions, windows, *gold(windows))
    assert found.predictions() == {"a": "上海", "b": "中国的首都", "c": "零度", "d": ""}
    scores = score_squad_v2(found.predictions(), questions.references(), found.odds())
    assert (scores["exact"], scores["best_f1"]) == (100.0, 100.0)


@pytest.mark.parametrize("cls_last", [False, True])
def test_gold_labels_of_squad_2_score_100(shared_data, cls_last):
    questions = squad_files.read(shared_data / "squad" / "v2.0_half_dev.json")
    vocabulary = tokenizer.load(shared_data / "vocab" / "bert-base-uncased")
    windows = squad_windows.encode(questions, vocabulary, cls_last=cls_last)
    found = squad_answers.find(questions, windows, *gold(windows), max_answer_length=60)
    scores = score_squad_v2(found.predictions(), questions.references(), found.odds())
    assert scores["exact"] > 99.9
    assert scores["f1"] > 99.9
    assert scores["NoAns_exact"] == 100.0
    assert scores["best_exact"] >= scores["exact"]
    answered = [identity for identity, texts in questions.references().items() if texts]
    predicted, expected = found.predictions(), questions.references()
    same = [predicted[identity] == expected[identity][0].strip() for identity in answered]
    assert np.mean(same) > 0.999


@pytest.mark.parametrize(
    ("vocabulary", "share"), [("bert-base-cased", 0.999), ("t5", 0.97), ("gpt2", 0.98)]
)
def test_gold_labels_of_squad_1_score_100(shared_data, vocabulary, share):
    """Tokens of T5 and GPT-2 may include punctuation; their padding serves as special tokens."""
    questions = squad_files.read(shared_data / "squad" / "v1.1_xquad_en.json")
    loaded = tokenizer.load(shared_data / "vocab" / vocabulary)
    if loaded.cls_id is None:
        loaded.cls_id = loaded.pad_id
    if loaded.sep_id is None:
        loaded.sep_id = loaded.pad_id
    windows = squad_windows.encode(questions, loaded, max_seq_length=300, doc_stride=100)
    found = squad_answers.find(questions, windows, *gold(windows)[:4], max_answer_length=60)
    scores = score_squad_v1(found.predictions(), questions.references())
    assert scores["exact_match"] > 99.8
    assert scores["f1"] > 99.9
    same = [
        predicted == text[0].strip()
        for predicted, text in zip(found.predictions().values(), questions.answers, strict=True)
    ]
    assert np.mean(same) > share
