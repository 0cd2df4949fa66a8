"""Minimal pairs: the share in which the acceptable sentence has the higher probability.

read         JSONL file -> pairs, as released with BLiMP (Warstadt et al. 2020)
score        scorer, pairs -> the log probabilities of both sentences of each pair
accuracies   scores -> the share of correct pairs, by paradigm
"""

import collections
import dataclasses
import json
from collections.abc import Callable, Sequence

import numpy as np

from bertjax.errors import UserError
from bertjax.inference.score_log import ScoreLog
from bertjax.inference.sentence_scores import Scorer, encode
from bertjax.io.lines import read_json_lines

Scores = list[tuple[float, float]]
"""Log probabilities of the acceptable and of the unacceptable sentence of each pair, in nats."""


@dataclasses.dataclass(frozen=True)
class MinimalPair:
    """Two sentences that differ in one grammatical property.

    Attributes:
      good: The acceptable sentence.
      bad: The unacceptable one.
      paradigm: Name of the paradigm, BLiMP's UID.
    """

    good: str
    bad: str
    paradigm: str


def read(path: str) -> list[MinimalPair]:
    """Reads one pair per line: `{"sentence_good": ..., "sentence_bad": ..., "UID": ...}`.

    Raises:
      UserError: the file is missing or empty, or a line has another format.
    """
    return read_json_lines(path, _parse, "JSON lines of sentence_good, sentence_bad, UID")


def _parse(line: str, where: str) -> MinimalPair:
    try:
        row = json.loads(line)
        values = [row[name] for name in ("sentence_good", "sentence_bad", "UID")]
        valid = all(isinstance(value, str) and value.strip() for value in values)
    except (ValueError, KeyError, TypeError):
        valid = False
    if not valid:
        raise UserError(
            f'{where}: expected {{"sentence_good": "...", "sentence_bad": "...", "UID": "..."}}, '
            f"got {line[:60]!r}"
        )
    return MinimalPair(*values)


def score(
    scorer: Scorer,
    pairs: Sequence[MinimalPair],
    *,
    batch_size: int,
    progress: Callable[[float, str], None],
    log: ScoreLog | None = None,
) -> Scores:
    """Scores all sentences; those that occur in several pairs once.

    Args:
      scorer: The model.
      pairs: Minimal pairs.
      batch_size: Sequences per batch.
      progress: Called with the share of the work that is done, and a line of text.
      log: Log of finished scores; see `Scorer.score`.

    Raises:
      UserError: a sentence is empty or too long.
    """
    sentences = list(dict.fromkeys(text for pair in pairs for text in (pair.good, pair.bad)))
    done = 0

    def report(count: int) -> None:
        nonlocal done
        done += count
        progress(done / len(sentences), f"{done:,} of {len(sentences):,} sentences")

    rows = encode(scorer, sentences)
    scores = scorer.score(rows, [0] * len(rows), batch_size, report, log)
    by_sentence = dict(zip(sentences, scores, strict=True))
    return [(by_sentence[pair.good], by_sentence[pair.bad]) for pair in pairs]


def accuracies(pairs: Sequence[MinimalPair], scores: Scores) -> dict[str, float]:
    """Returns the accuracy of each paradigm, and their mean as `accuracy`; a tie is an error."""
    correct: dict[str, list[bool]] = collections.defaultdict(list)
    for pair, (good, bad) in zip(pairs, scores, strict=True):
        correct[pair.paradigm].append(good > bad)
    shares = {name: float(np.mean(found)) for name, found in sorted(correct.items())}
    return shares | {"accuracy": float(np.mean(list(shares.values())))}
