"""SQuAD scores: hand-computed, equal to published numbers, equal to a slow second implementation.

The second implementation shares no code with the first: it compares lists of words, counts common
words by removing them one by one, and evaluates every threshold from scratch.
"""

import json
import math
import random
import string

import pytest

from bertjax.errors import UserError
from bertjax.metrics.answers import (
    normalize_answer,
    score_squad_v1,
    score_squad_v2,
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The  Cat,\tsat\n", "cat sat"),
        ("a", ""),
        ("an AN aN", ""),
        ("theatre another", "theatre another"),
        ("the-cat", "thecat"),
        ("a.b", "ab"),
        ("the\u2019cat", "\u2019cat"),
        ("1,000.50", "100050"),
        ("\u00a0x\u3000y\u00a0", "x y"),
        ("ÜBER die", "über die"),
        ("《书》", "《书》"),
        ("one\u2019a\u2019two", "one\u2019 \u2019two"),
        ("", ""),
    ],
)
def test_normalization_by_hand(text, words):
    assert normalize_answer(text) == words


def test_squad_v1_by_hand():
    questions = {
        "exact": ["The cat"],
        "half": ["black cat", "dog"],
        "best of two": ["a b c d e", "c"],
        "wrong": ["x"],
        "missing": ["y"],
    }
    predictions = {
        "exact": "cat!",
        "half": "white cat",
        "best of two": "c d",
        "wrong": "z",
        "other": "?",
    }
    # "a b c d e" loses its article: 2 of 4 words, all of 2 predicted: 2/3; "c": 1/2 and 1: 2/3.
    # exact 1, half 2 * 1/2 * 1/2 / 1 = 1/2, best of two 2/3.
    scores = score_squad_v1(predictions, questions)
    assert scores["exact_match"] == 20.0
    assert scores["f1"] == pytest.approx(100 * (1 + 1 / 2 + 2 / 3) / 5)
    assert (scores["total"], scores["missing"]) == (5, 1)


def test_repeated_words_count_as_often_as_in_both_texts():
    # 2 of 3 predicted and 2 of 4 expected: 2 * 2/3 * 1/2 / (2/3 + 1/2) = 4/7
    scores = score_squad_v1({"q": "b b c"}, {"q": ["b b b d"]})
    assert scores["f1"] == pytest.approx(400 / 7)


def test_reordered_words_are_no_exact_match():
    scores = score_squad_v1({"q": "b c"}, {"q": ["c b"]})
    assert (scores["exact_match"], scores["f1"]) == (0.0, 100.0)


def test_empty_answers_score_differently_in_the_two_versions():
    one = score_squad_v1({"q": "the"}, {"q": ["a"]})
    assert (one["exact_match"], one["f1"]) == (100.0, 0.0)
    two = score_squad_v2({"q": "the"}, {"q": ["a"]})
    assert (two["exact"], two["f1"]) == (100.0, 100.0)
    assert (two["HasAns_exact"], two["HasAns_total"]) == (100.0, 1)
    # In 2.0 a reference of articles alone is ignored next to others, in 1.1 it counts.
    questions = {"q": ["the", "cat"]}
    assert score_squad_v1({"q": ""}, questions)["exact_match"] == 100.0
    assert score_squad_v2({"q": ""}, questions)["exact"] == 0.0


def test_published_scores_are_reproduced(shared_data):
    folder = shared_data / "squad"
    articles = json.loads((folder / "v1.1_xquad_en.json").read_text("utf-8"))["data"]
    questions = {
        question["id"]: [answer["text"] for answer in question["answers"]]
        for article in articles
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    }
    text = (folder / "predictions" / "v1.1_logreg_baseline.json").read_text("utf-8")
    assert score_squad_v1(json.loads(text), questions) == {
        "exact_match": 34.53781512605042,
        "f1": 45.852334974514676,
        "total": 1190,
        "missing": 2,
    }


def test_squad_v2_by_hand():
    questions = {"a": ["cat"], "b": ["black cat"], "n": [], "m": []}
    predictions = {"a": "cat", "b": "cat", "n": "", "m": "dog", "other": "x"}
    assert score_squad_v2(predictions, questions) == {
        "exact": 50.0,
        "f1": pytest.approx(100 * (1 + 2 / 3 + 1) / 4),
        "total": 4,
        "HasAns_exact": 50.0,
        "HasAns_f1": pytest.approx(100 * (1 + 2 / 3) / 2),
        "HasAns_total": 2,
        "NoAns_exact": 50.0,
        "NoAns_f1": 50.0,
        "NoAns_total": 2,
        "missing": 0,
    }


def test_answers_above_the_threshold_count_as_empty():
    questions = {"a": ["cat"], "b": ["dog"], "n": [], "m": []}
    predictions = {"a": "cat", "b": "dog", "n": "x", "m": "y"}
    odds = {"a": 0.5, "b": 3.0, "n": 2.0, "m": 1.0}
    scores = score_squad_v2(predictions, questions, odds)
    # The default is 1: above it are b, which is lost, and n, which is won; m is not above it.
    assert (scores["HasAns_exact"], scores["NoAns_exact"]) == (50.0, 50.0)
    scores = score_squad_v2(predictions, questions, odds, na_prob_thresh=0.75)
    assert (scores["HasAns_f1"], scores["NoAns_f1"]) == (50.0, 100.0)
    # Answering a alone gives 3 of 4; b comes after both unanswerable questions.
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (75.0, 0.5)
    assert (scores["best_f1"], scores["best_f1_thresh"]) == (75.0, 0.5)


def test_an_answer_above_the_threshold_costs_nothing():
    questions, predictions = {"n": [], "a": ["x"]}, {"n": "", "a": "x"}
    odds = {"n": 1.0, "a": 2.0}
    scores = score_squad_v2(predictions, questions, odds)
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (100.0, 2.0)


def test_the_lowest_of_equally_good_thresholds_is_reported():
    questions, predictions = {"a": ["x"], "n": [], "b": ["y"]}, {"a": "x", "n": "z", "b": "y"}
    odds = {"a": -3.0, "n": -2.0, "b": -1.0}
    # 1 without answers, 2 with a, 1 with a and n, 2 with all.
    scores = score_squad_v2(predictions, questions, odds)
    assert scores["best_exact"] == pytest.approx(200 / 3)
    assert scores["best_exact_thresh"] == -3.0
    wrong = score_squad_v2(dict.fromkeys(questions, "w"), questions, odds)
    assert (wrong["best_exact"], wrong["best_exact_thresh"]) == (pytest.approx(100 / 3), 0.0)


def test_equal_odds_count_in_their_order_as_in_the_official_search():
    questions, predictions = {"n": [], "a": ["x"]}, {"n": "z", "a": "x"}
    first = score_squad_v2(predictions, questions, {"a": 1.0, "n": 1.0})
    last = score_squad_v2(predictions, questions, {"n": 1.0, "a": 1.0})
    assert (first["best_exact"], first["best_exact_thresh"]) == (100.0, 1.0)
    assert (last["best_exact"], last["best_exact_thresh"]) == (50.0, 0.0)


def test_odds_of_other_questions_are_ignored():
    questions, predictions = {"a": ["x"]}, {"a": "x"}
    odds = {"other": -9.0, "a": 0.0}
    scores = score_squad_v2(predictions, questions, odds)
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (100.0, 0.0)


def test_no_questions():
    assert score_squad_v1({}, {}) == {"exact_match": 0.0, "f1": 0.0, "total": 0, "missing": 0}
    assert score_squad_v2({}, {}, {}) == {
        "exact": 0.0,
        "f1": 0.0,
        "total": 0,
        "best_exact": 0.0,
        "best_exact_thresh": 0.0,
        "best_f1": 0.0,
        "best_f1_thresh": 0.0,
        "missing": 0,
    }


def test_no_predictions():
    assert score_squad_v1({}, {"q": ["x"]}) == {
        "exact_match": 0.0,
        "f1": 0.0,
        "total": 1,
        "missing": 1,
    }
    scores = score_squad_v2({}, {"q": ["x"], "n": []}, {})
    assert {scores[name] for name in ("exact", "HasAns_f1", "NoAns_f1", "best_f1")} == {0.0}
    assert (scores["total"], scores["missing"], scores["NoAns_total"]) == (2, 2, 1)


def test_all_unanswerable():
    scores = score_squad_v2({"n": "", "m": "x"}, {"n": [], "m": []})
    assert (scores["exact"], scores["NoAns_total"]) == (50.0, 2)
    assert not any(name.startswith("HasAns") for name in scores)


def test_errors_name_the_question_that_cannot_be_scored():
    with pytest.raises(UserError, match=r"question 'n': got no answer, .*; score with"):
        score_squad_v1({"n": ""}, {"n": []})
    with pytest.raises(UserError, match=r"missing for 1 of 2 predictions, .* question 'b'"):
        score_squad_v2({"a": "", "b": ""}, {"a": [], "b": ["x"]}, {"a": 1.0, "c": 2.0})


WORDS = ["the", "a", "An", "cat", "Dog.", "dog", "-", "...", "Übung", "x", "İ", "1,000", "\u00a0"]


def words_of(text):
    letters = [letter for letter in text.lower() if letter not in string.punctuation]
    return [word for word in "".join(letters).split() if word not in ("a", "an", "the")]


def slow_f1(predicted, expected, of_nothing):
    if not predicted or not expected:
        return of_nothing if predicted == expected else 0.0
    left, common = list(expected), 0
    for word in predicted:
        if word in left:
            left.remove(word)
            common += 1
    precision, recall = common / len(predicted), common / len(expected)
    return 2 * precision * recall / (precision + recall) if common else 0.0


def slow_one(predictions, questions):
    exact = overlap = 0.0
    for identity in questions:
        if identity in predictions:
            predicted = words_of(predictions[identity])
            expected = [words_of(answer) for answer in questions[identity]]
            exact += any(answer == predicted for answer in expected)
            overlap += max(slow_f1(predicted, answer, of_nothing=0.0) for answer in expected)
    return 100 * exact / len(questions), 100 * overlap / len(questions)


def slow_two(predictions, questions, part, odds, threshold):
    """Compute exact match and F1 of some questions."""
    exact = overlap = 0.0
    for identity in part:
        above = odds[identity] > threshold
        if above:
            exact += not questions[identity]
            overlap += not questions[identity]
            continue
        expected = [words for words in map(words_of, questions[identity]) if words] or [[]]
        predicted = words_of(predictions[identity])
        exact += predicted in expected
        overlap += max(slow_f1(predicted, answer, of_nothing=1.0) for answer in expected)
    return (100 * exact / len(part), 100 * overlap / len(part)) if part else None


def random_text(generator, most):
    return " ".join(generator.choices(WORDS, k=generator.randint(0, most)))


@pytest.mark.parametrize("seed", range(40))
def test_squad_v1_agrees_with_a_second_implementation(seed):
    generator = random.Random(seed)
    questions = {
        str(number): [random_text(generator, 5) for _ in range(generator.randint(1, 4))]
        for number in range(generator.randint(1, 30))
    }
    predictions = {
        identity: random_text(generator, 5) for identity in questions if generator.random() < 0.9
    }
    scores = score_squad_v1(predictions, questions)
    assert (scores["exact_match"], scores["f1"]) == slow_one(predictions, questions)


@pytest.mark.parametrize("seed", range(40))
def test_squad_v2_agrees_with_a_second_implementation(seed):
    generator = random.Random(seed)
    questions = {
        str(number): [random_text(generator, 4) for _ in range(generator.randint(0, 3))]
        for number in range(generator.randint(1, 30))
    }
    predictions = {identity: random_text(generator, 4) for identity in questions}
    odds = {identity: round(generator.gauss(0, 2), 1) for identity in questions}
    threshold = generator.choice([1.0, 0.0, -0.7])
    scores = score_squad_v2(predictions, questions, odds, na_prob_thresh=threshold)
    parts = {
        "": list(questions),
        "HasAns_": [identity for identity in questions if questions[identity]],
        "NoAns_": [identity for identity in questions if not questions[identity]],
    }
    for prefix, part in parts.items():
        expected = slow_two(predictions, questions, part, odds, threshold)
        if expected is None:
            assert f"{prefix}exact" not in scores
        else:
            assert scores[f"{prefix}total"] == len(part)
            assert (scores[f"{prefix}exact"], scores[f"{prefix}f1"]) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(20))
def test_no_threshold_is_better_than_the_best(seed):
    """All thresholds are evaluated; unanswerable questions are answered, no odds are equal."""
    generator = random.Random(seed)
    questions = {
        str(number): [generator.choice("xyz")] * generator.randint(0, 1) for number in range(25)
    }
    predictions = {identity: generator.choice("xyz") for identity in questions}
    odds = dict(zip(questions, generator.sample(range(-50, 50), 25), strict=True))
    scores = score_squad_v2(predictions, questions, odds)
    tried = [
        score_squad_v2(predictions, questions, odds, na_prob_thresh=threshold)
        for threshold in [-math.inf, *odds.values()]
    ]
    assert scores["best_exact"] == max(one["exact"] for one in tried)
    assert scores["best_f1"] == max(one["f1"] for one in tried)
    at_best = score_squad_v2(
        predictions, questions, odds, na_prob_thresh=scores["best_exact_thresh"]
    )
    unanswered = tried[0]["exact"]
    assert scores["best_exact"] in (at_best["exact"], unanswered)
