"""Zero-shot multiple choice: the answer with the highest likelihood under a causal LM.

read      JSONL file -> Questions
choose    model, questions, examples -> the log probability of every answer
accuracy  by their sum, by their mean per byte
Examples that are answered already, "shots", come before a question (Brown et al. 2020, section 2).
"""

import dataclasses
import json
import random
from collections.abc import Sequence

import numpy as np

from bertjax.errors import UserError
from bertjax.inference.language_model import LanguageModel, check_length
from bertjax.inference.perplexity import padded
from bertjax.io import storage
from bertjax.io.lines import read_text_lines

_BETWEEN = "\n\n"
"""Between examples."""


@dataclasses.dataclass(frozen=True)
class Question:
    """What is asked.

    Attributes:
      text: The question, or the beginning of a text.
      choices: Answers, of which one is right.
      answer: The number of the right one, from 0.
    """

    text: str
    choices: tuple[str, ...]
    answer: int

    def with_answer(self, number: int) -> str:
        """The question and an answer, a space between them."""
        return f"{self.text} {self.choices[number]}"


def read(path: str) -> list[Question]:
    """Reads one question a line: `{"question": ..., "choices": [...], "answer": 0}`.

    Raises:
      UserError: there is no such file, or a line is not of that form.
    """
    file = storage.to_path(path)
    if not file.is_file():
        raise UserError(f"no file {file}: expected JSON lines of question, choices, answer")
    found = [_question(line, where) for where, line in read_text_lines(path) if line.strip()]
    if not found:
        raise UserError(f"{file} is empty: expected JSON lines of question, choices, answer")
    return found


def _question(line: str, where: str) -> Question:
    try:
        row = json.loads(line)
        text, choices, answer = row["question"], row["choices"], row["answer"]
        fits = isinstance(text, str) and all(isinstance(choice, str) for choice in choices)
        fits = fits and type(answer) is int and 0 <= answer < len(choices) and len(choices) > 1
    except (ValueError, KeyError, TypeError):
        fits = False
    if not fits:
        raise UserError(
            f'{where}: expected {{"question": "...", "choices": ["...", "..."], "answer": 0}}, '
            f"got {line[:60]!r}"
        )
    return Question(text, tuple(choices), answer)


def preambles(
    questions: Sequence[Question], examples: Sequence[Question], shots: int, seed: int
) -> list[str]:
    """What stands before each question: answered examples, drawn for each, never itself.

    Raises:
      UserError: there are too few examples.
    """
    if shots < 0:
        raise UserError(f"shots={shots}: expected 0 or more")
    made = []
    for number, question in enumerate(questions):
        others = [example for example in examples if example.text != question.text]
        if len(others) < shots:
            raise UserError(
                f"{shots} shots were asked for, there are {len(others)} other examples: lower "
                "--shots or name more with --shots_from"
            )
        drawn = random.Random(f"{seed} {number}").sample(others, shots)
        made.append("".join(each.with_answer(each.answer) + _BETWEEN for each in drawn))
    return made


def choose(
    model: LanguageModel,
    questions: Sequence[Question],
    before: Sequence[str],
    *,
    batch_size: int = 8,
) -> list[list[float]]:
    """The log probability, in nats, of every answer to each question.

    Args:
      model: Who is asked.
      questions: What is asked.
      before: A text before each question; see `preambles`.
      batch_size: Answers at a time.

    Raises:
      UserError: a question with its examples is longer than the model reads.
    """
    rows, begins = [], []
    for number, (question, preamble) in enumerate(zip(questions, before, strict=True), 1):
        whole = [preamble + question.with_answer(n) for n in range(len(question.choices))]
        (known, *encoded) = model.tokenizer.encode_batch([preamble + question.text, *whole])
        for ids in encoded:
            rows.append(_with_beginning(model, ids))
            check_length(model, len(rows[-1]), f"question {number}", "ask with fewer --shots")
            begins.append(len(rows[-1]) - len(ids) + _shared(known, ids))
    sums = iter(_log_probabilities(model, rows, begins, batch_size))
    return [[next(sums) for _ in question.choices] for question in questions]


def accuracies(
    questions: Sequence[Question], scores: Sequence[Sequence[float]]
) -> dict[str, float]:
    """The share of right answers: by log probability, and by that per byte of the answer.

    The second does not favour short answers (Brown et al. 2020, section 2.4, have it per token).
    """
    right, right_per_byte = 0, 0
    for question, row in zip(questions, scores, strict=True):
        sizes = [max(1, len(choice.encode())) for choice in question.choices]
        right += int(np.argmax(row)) == question.answer
        right_per_byte += int(np.argmax(np.divide(row, sizes))) == question.answer
    chance = float(np.mean([1 / len(question.choices) for question in questions]))
    total = len(questions)
    return {
        "accuracy": right / total,
        "accuracy_per_byte": right_per_byte / total,
        "chance": chance,
    }


def _with_beginning(model: LanguageModel, ids: list[int]) -> list[int]:
    """A document's first token is predicted from the end of the one before."""
    return ids if model.end_id is None else [model.end_id, *ids]


def _shared(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two texts begin with alike: where the answer's own begin."""
    pairs = zip(first, second, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _log_probabilities(
    model: LanguageModel, rows: list[list[int]], begins: list[int], batch_size: int
) -> list[float]:
    """The sum over each row's tokens from where its answer begins."""
    length = max(map(len, rows))
    sums = []
    for first in range(0, len(rows), batch_size):
        group = rows[first : first + batch_size]
        ids, there = padded(group, length, batch_size)
        log_probs = np.asarray(model.predictions(model.params, ids, there)[0])
        for row, (tokens, begin) in enumerate(zip(group, begins[first:], strict=False)):
            answer = log_probs[row, max(begin, 1) - 1 : len(tokens) - 1]
            sums.append(float(answer.sum(dtype=np.float64)))
    return sums
