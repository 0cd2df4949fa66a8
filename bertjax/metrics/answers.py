"""Exact match and F1 of extractive question answering, equal to SQuAD's official scorers.

SQuAD 1.1 (`evaluate-v1.1`; Rajpurkar et al. 2016) and 2.0 (`evaluate-v2.0`; Rajpurkar et al. 2018)
compare texts in lower case, without punctuation, articles and repeated white space. The two differ
where this leaves an empty text: in 1.1 its F1 is 0 even if the reference is empty too; in 2.0 it is
1 then, and empty references are ignored. Scores are percentages; a division by zero gives 0.

A question without a prediction scores 0 and is counted in `missing`. That is the rule of 1.1; the
official scorer of 2.0 stops with an error instead.

Both scorers split words at white space. A Chinese answer is then a single word, and its F1 equals
its exact match. The official scores are reported unchanged; `character_f1` gives partial credit.
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
"""Accepted answers by question id; an empty sequence for a question that has no answer."""


def score_squad_v1(predictions: Mapping[str, str], questions: Answers) -> dict[str, float]:
    """Score predictions by the rules of SQuAD 1.1, where every question has an answer.

    Args:
      predictions: Predicted texts by question id; ids that are not in `questions` are ignored.
      questions: Accepted answers by question id.

    Returns:
      `exact_match` and `f1` in percent, `total` questions, and `missing` predictions.

    Raises:
      UserError: A question has no answer.
    """
    exact, overlap = [], []
    for identity, answers in questions.items():
        if not answers:
            raise UserError(
                f"question {identity!r}: got no answer, expected at least one in SQuAD 1.1; score "
                "with the rules of 2.0, or remove the question"
            )
        if identity in predictions:
            predicted = normalize_answer(predictions[identity])
            accepted = [normalize_answer(answer) for answer in answers]
            exact.append(predicted in accepted)
            overlap.append(max(_word_f1(predicted.split(), answer.split()) for answer in accepted))
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
    """Score predictions by the rules of SQuAD 2.0, where a question may have no answer.

    The prediction "" means that a question has no answer.

    Args:
      predictions: Predicted texts by question id; ids that are not in `questions` are ignored.
      questions: Accepted answers by question id.
      null_odds: Scores for "the question has no answer" by question id, on any scale.
      na_prob_thresh: A question whose null odds are above this counts as predicted "".

    Returns:
      `exact`, `f1` and `total` of all questions, of those with an answer (`HasAns_...`) and of
      those without (`NoAns_...`), and the number of `missing` predictions. With `null_odds` also
      the highest scores over all thresholds, `best_exact` and `best_f1`, and these thresholds,
      `best_exact_thresh` and `best_f1_thresh`.

    Raises:
      UserError: A prediction has no null odds.
    """
    scored = {identity: text for identity, text in predictions.items() if identity in questions}
    scores = {identity: _scores(scored[identity], questions[identity]) for identity in scored}
    odds = dict.fromkeys(scored, 0.0) if null_odds is None else null_odds
    _check_odds(scored, odds)
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
            best, threshold = _best_threshold(single, scored, questions, null_odds)
            result |= {f"best_{name}": best, f"best_{name}_thresh": threshold}
    return result | {"missing": len(questions) - len(scored)}


def is_mostly_chinese(questions: Answers) -> bool:
    """Whether over half of the answerable questions have an answer with Chinese characters."""
    answered = [answers for answers in questions.values() if answers]
    chinese = sum(any(map(_CHINESE.search, answers)) for answers in answered)
    return 2 * chinese > len(answered)


def character_f1(predictions: Mapping[str, str], questions: Answers) -> float:
    """Compute the F1 of Chinese answers in percent, where every Chinese character is a word.

    This is MLQA's rule for Chinese (Lewis et al. 2020, `mlqa_evaluation_v1.py`): lower case, no
    punctuation of any script, other text split at white space. DRCD (Shao et al. 2018) counts
    characters as well; the scorer of CMRC 2018 counts the longest common substring instead of the
    common characters. For a question without an answer only "" scores 1.

    Args:
      predictions: Predicted texts by question id; a question without one scores 0.
      questions: Accepted answers by question id.
    """
    scores = [
        max(_character_f1(predictions[identity], answer) for answer in answers or ("",))
        for identity, answers in questions.items()
        if identity in predictions
    ]
    return _percent(scores, len(questions))


def _character_f1(predicted: str, answer: str) -> float:
    words, expected = _split_characters(predicted), _split_characters(answer)
    return _word_f1(words, expected) if words and expected else float(words == expected)


def _split_characters(text: str) -> list[str]:
    """Split Chinese text into characters, and other text at white space."""
    kept = (letter for letter in text.lower() if unicodedata.category(letter)[0] != "P")
    return _CHINESE.sub(r" \1 ", "".join(kept)).split()


def normalize_answer(text: str) -> str:
    """Lower the case of a text and remove punctuation, articles and repeated white space."""
    letters = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", letters).split())


def _word_f1(predicted: list[str], answer: list[str]) -> float:
    """F1 over the multiset of words that two texts have in common."""
    common = (Counter(predicted) & Counter(answer)).total()
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(answer)
    return 2 * precision * recall / (precision + recall)


def _scores(prediction: str, answers: Sequence[str]) -> tuple[float, float]:
    """Exact match and F1 by the rules of 2.0, before any threshold."""
    predicted = normalize_answer(prediction)
    accepted = [text for text in map(normalize_answer, answers) if text] or [""]
    exact = float(predicted in accepted)
    if not predicted:
        return exact, exact
    return exact, max(_word_f1(predicted.split(), text.split()) for text in accepted)


def _check_odds(predictions: Mapping[str, str], odds: Mapping[str, float]) -> None:
    lacking = [identity for identity in predictions if identity not in odds]
    if lacking:
        raise UserError(
            f"null odds: missing for {len(lacking)} of {len(predictions)} predictions, first for "
            f"question {lacking[0]!r}, expected a number for each prediction; pass the null odds "
            "that belong to these predictions"
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
    """The highest score over all thresholds, and the lowest threshold that reaches it.

    As in the official search, all questions start as unanswered and are answered one by one in
    ascending order of their odds. So questions with equal odds, in their order in `odds`, may be
    counted differently, which no threshold does; and the threshold for answering none is 0.
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
    # Not sum(): since Python 3.12 it compensates rounding, and would not equal the scorers' digits.
    return 100.0 * functools.reduce(operator.add, values, 0) / total if total else 0.0
