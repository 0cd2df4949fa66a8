"""Exact match and F1 of answers, digit for digit as SQuAD's official scorers.

SQuAD 1.1 (`evaluate-v1.1`; Rajpurkar et al. 2016) and 2.0 (`evaluate-v2.0`; Rajpurkar et al. 2018)
compare texts in lower case, without punctuation, articles and needless white space. Where nothing
is left of a text they differ: in 1.1 its F1 is 0 even if the answer is as empty; in 2.0 it is 1
then, and answers that are nothing are no answers. Scores are percentages; what divides by zero is
0.

A question without a prediction counts 0 and is counted in `missing`. That is 1.1's rule; 2.0's
official scorer ends with an error there.

Both part words at white space, so that an answer in Chinese is one word, and its F1 that of an
exact match. The official numbers stay what they are; `character_f1` says how much of such answers
is right.
"""

import functools
import operator
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from bertjax.errors import UserError

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_CHINESE = re.compile("([\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002ffff])")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)

Answers = Mapping[str, Sequence[str]]
"""The accepted answers of each question, by its id; none where it has no answer."""


def score_squad_v1(predictions: Mapping[str, str], questions: Answers) -> dict[str, float]:
    """Scores SQuAD 1.1, where every question has an answer.

    Args:
      predictions: Predicted texts by question id; others than those asked for change nothing.
      questions: Accepted answers by question id.

    Returns:
      `exact_match` and `f1` in percent, `total` questions, and `missing` predictions.

    Raises:
      UserError: a question has no answer.
    """
    exact, overlap = [], []
    for identity, answers in questions.items():
        if not answers:
            raise UserError(
                f"question {identity!r} has no answer, as in SQuAD 2.0: score with the rules of "
                "2.0, or leave it out"
            )
        if identity in predictions:
            predicted = normalize_answer(predictions[identity])
            wanted = [normalize_answer(answer) for answer in answers]
            exact.append(predicted in wanted)
            overlap.append(max(_overlap(predicted.split(), answer.split()) for answer in wanted))
    total = len(questions)
    return {
        "exact_match": _percent(exact, total),
        "f1": _percent(overlap, total),
        "total": total,
        "missing": total - len(exact),
    }


def score_squad_v2(
    predictions: Mapping[str, str],
    questions: Answers,
    null_odds: Mapping[str, float] | None = None,
    *,
    na_prob_thresh: float = 1.0,
) -> dict[str, float]:
    """Scores SQuAD 2.0, where the right answer to some questions is none, written "".

    Args:
      predictions: Predicted texts by question id; others than those asked for change nothing.
      questions: Accepted answers by question id.
      null_odds: How sure it is that a question has no answer, by its id, on any scale.
      na_prob_thresh: A question whose odds are above this is taken as predicted to have no answer.

    Returns:
      `exact`, `f1` and `total`, of the questions that have an answer (`HasAns_...`) and of those
      that have none (`NoAns_...`), and `missing` predictions. With null odds also the highest
      scores that any threshold gives, `best_exact` and `best_f1`, and these thresholds,
      `best_exact_thresh` and `best_f1_thresh`.

    Raises:
      UserError: a prediction has no null odds.
    """
    asked = {identity: text for identity, text in predictions.items() if identity in questions}
    scores = {identity: _scores(asked[identity], questions[identity]) for identity in asked}
    odds = dict.fromkeys(asked, 0.0) if null_odds is None else null_odds
    _check_odds(asked, odds)
    decided = {
        identity: (float(not questions[identity]),) * 2 if odds[identity] > na_prob_thresh else pair
        for identity, pair in scores.items()
    }
    result = _summary(decided, list(questions))
    for name, answerable in (("HasAns", True), ("NoAns", False)):
        if part := [identity for identity in questions if bool(questions[identity]) == answerable]:
            result |= {f"{name}_{key}": value for key, value in _summary(decided, part).items()}
    if null_odds is not None:
        for number, name in enumerate(("exact", "f1")):
            single = {identity: pair[number] for identity, pair in scores.items()}
            best, threshold = _best_threshold(single, asked, questions, null_odds)
            result |= {f"best_{name}": best, f"best_{name}_thresh": threshold}
    return result | {"missing": len(questions) - len(asked)}


def is_mostly_chinese(questions: Answers) -> bool:
    """Whether most of the questions that have an answer have one with Chinese characters."""
    answered = [answers for answers in questions.values() if answers]
    chinese = sum(any(map(_CHINESE.search, answers)) for answers in answered)
    return 2 * chinese > len(answered)


def character_f1(predictions: Mapping[str, str], questions: Answers) -> float:
    """The F1 of answers in Chinese, in percent: every Chinese character is a word.

    MLQA's rule for Chinese (Lewis et al. 2020, its `mlqa_evaluation_v1.py`): lower case, without
    punctuation of any script, other letters parted at white space; DRCD (Shao et al. 2018) counts
    characters as well. CMRC 2018's own scorer counts the longest common part in place of those in
    common. A question without an answer is right with "" alone.

    Args:
      predictions: Predicted texts by question id; a question without one counts 0.
      questions: Accepted answers by question id.
    """
    found = [
        max(_mixed_overlap(predictions[identity], answer) for answer in answers or ("",))
        for identity, answers in questions.items()
        if identity in predictions
    ]
    return _percent(found, len(questions))


def _mixed_overlap(predicted: str, wanted: str) -> float:
    words, wanted_words = _mixed_words(predicted), _mixed_words(wanted)
    return _overlap(words, wanted_words) if words and wanted_words else float(words == wanted_words)


def _mixed_words(text: str) -> list[str]:
    """Chinese characters one by one, and what stands between them at white space."""
    kept = (letter for letter in text.lower() if unicodedata.category(letter)[0] != "P")
    return _CHINESE.sub(r" \1 ", "".join(kept)).split()


def normalize_answer(text: str) -> str:
    """A text as both scorers compare it."""
    letters = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", letters).split())


def _overlap(predicted: list[str], wanted: list[str]) -> float:
    """F1 of the words that two texts have in common, each as often as in both."""
    common = (Counter(predicted) & Counter(wanted)).total()
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(wanted)
    return 2 * precision * recall / (precision + recall)


def _scores(prediction: str, answers: Sequence[str]) -> tuple[float, float]:
    """Exact match and F1 by the rules of 2.0, before any threshold."""
    predicted = normalize_answer(prediction)
    wanted = [text for text in map(normalize_answer, answers) if text] or [""]
    exact = float(predicted in wanted)
    if not predicted:
        return exact, exact
    return exact, max(_overlap(predicted.split(), text.split()) for text in wanted)


def _check_odds(predictions: Mapping[str, str], odds: Mapping[str, float]) -> None:
    lacking = [identity for identity in predictions if identity not in odds]
    if lacking:
        raise UserError(
            f"{len(lacking)} of {len(predictions)} predictions have no null odds, the first is of "
            f"question {lacking[0]!r}: expected one of each; score predictions with their own odds"
        )


def _summary(
    scores: Mapping[str, tuple[float, float]], questions: Sequence[str]
) -> dict[str, float]:
    pairs = [scores[identity] for identity in questions if identity in scores]
    total = len(questions)
    return {
        "exact": _percent((exact for exact, _ in pairs), total),
        "f1": _percent((overlap for _, overlap in pairs), total),
        "total": total,
    }


def _best_threshold(
    scores: Mapping[str, float],
    predictions: Mapping[str, str],
    questions: Answers,
    odds: Mapping[str, float],
) -> tuple[float, float]:
    """The highest score of any threshold, and the lowest threshold that gives it.

    Like the official search it begins with no question answered and answers one after the other.
    Of equal odds, in their order in `odds`, it counts some and not others, which no threshold does;
    and the threshold of answering none is said to be 0.
    """
    score = best = sum(not questions[identity] for identity in scores)
    threshold = 0.0
    for identity in sorted(odds, key=odds.__getitem__):
        if identity in scores:
            wrongly_answered = -1 if predictions[identity] else 0
            score += scores[identity] if questions[identity] else wrongly_answered
            if score > best:
                best, threshold = score, odds[identity]
    return _percent([best], len(questions)), threshold


def _percent(values: Iterable[float], total: int) -> float:
    # Not sum(): from Python 3.12 on it rounds otherwise than adding one by one, as the scorers did.
    return 100.0 * functools.reduce(operator.add, values, 0) / total if total else 0.0
