"""Zero-shot and few-shot multiple choice: select the answer with the highest likelihood.

read_questions      JSONL file -> questions
sample_shots        questions, examples -> the few-shot prompt before each question
score_choices       scorer, questions, prompts -> the log probability of every answer
compute_accuracies  scores -> accuracy by log probability, and by log probability per byte

A shot is a question with its answer, which precedes the question (Brown et al. 2020, section 2).
"""

import dataclasses
import json
import random
from collections.abc import Callable, Sequence

import numpy as np

from bertjax.errors import UserError
from bertjax.inference.score_log import ScoreLog
from bertjax.inference.sentence_scores import Scorer
from bertjax.io.lines import read_json_lines

_SEPARATOR = "\n\n"
"""Between shots."""


@dataclasses.dataclass(frozen=True)
class Question:
    """Multiple-choice question.

    Attributes:
      text: The question, or the beginning of a text.
      choices: Candidate answers.
      answer: Index of the correct one.
      where: Its file and line, for error messages.
    """

    text: str
    choices: tuple[str, ...]
    answer: int
    where: str = dataclasses.field(default="question", compare=False)

    def with_answer(self, index: int) -> str:
        """Returns the question and an answer, separated by a space."""
        return f"{self.text} {self.choices[index]}"


def read_questions(path: str) -> list[Question]:
    """Reads one question per line: `{"question": ..., "choices": [...], "answer": 0}`.

    Raises:
      UserError: the file is missing or empty, or a line has another format.
    """
    expected = "JSON lines of question, choices, answer"
    return read_json_lines(path, _parse_question, expected)


def _parse_question(line: str, where: str) -> Question:
    try:
        row = json.loads(line)
        text, choices, answer = row["question"], row["choices"], row["answer"]
        valid = isinstance(text, str)
        valid = valid and all(isinstance(choice, str) and choice.strip() for choice in choices)
        valid = valid and type(answer) is int and 0 <= answer < len(choices) and len(choices) > 1
    except (ValueError, KeyError, TypeError):
        valid = False
    if not valid:
        raise UserError(
            f'{where}: expected {{"question": "...", "choices": ["...", "..."], "answer": 0}}, '
            f"got {line[:60]!r}"
        )
    return Question(text, tuple(choices), answer, where)


def sample_shots(
    questions: Sequence[Question], examples: Sequence[Question], shots: int, seed: int
) -> list[str]:
    """Samples the few-shot prompt of each question: other examples with their answers.

    Args:
      questions: Questions.
      examples: Examples to sample from, without replacement; never the question itself.
      shots: Number of examples per question.
      seed: Seed of sampling.

    Raises:
      UserError: there are too few examples.
    """
    if shots < 0:
        raise UserError(f"shots: got {shots}, expected at least 0")
    prompts = []
    for number, question in enumerate(questions):
        others = [example for example in examples if example.text != question.text]
        if len(others) < shots:
            raise UserError(
                f"too few examples: got {shots} shots, expected at most {len(others)}, the "
                "number of other examples; lower num_fewshot or pass more with fewshot_input"
            )
        sampled = random.Random(f"{seed} {number}").sample(others, shots)
        prompts.append("".join(each.with_answer(each.answer) + _SEPARATOR for each in sampled))
    return prompts


def score_choices(
    scorer: Scorer,
    questions: Sequence[Question],
    prompts: Sequence[str],
    *,
    batch_size: int,
    progress: Callable[[float, str], None] = lambda share, text: None,
    log: ScoreLog | None = None,
) -> list[list[float]]:
    """Computes the log probability, in nats, of every answer to each question.

    Args:
      scorer: The model.
      questions: Questions.
      prompts: Text before each question; see `sample_shots`.
      batch_size: Sequences per batch.
      progress: Called with the share of the work that is done, and a line of text.
      log: Log of finished scores; see `Scorer.score`.

    Returns:
      For each question, the log probability of each choice.

    Raises:
      UserError: a question with its prompt is longer than the model's positions.
    """
    rows, starts = [], []
    for question, prompt in zip(questions, prompts, strict=True):
        answered = [prompt + question.with_answer(n) for n in range(len(question.choices))]
        context, *encoded = scorer.tokenizer.encode_batch([prompt + question.text, *answered])
        for ids in encoded:
            if len(ids) > scorer.max_tokens:
                raise UserError(
                    f"{question.where} is too long: got {len(ids):,} tokens, expected at most "
                    f"{scorer.max_tokens:,}; shorten it, or lower num_fewshot"
                )
            rows.append(ids)
            starts.append(_common_prefix(context, ids))
    done = 0

    def report(count: int) -> None:
        nonlocal done
        done += count
        progress(done / len(rows), f"{done:,} of {len(rows):,} texts")

    sums = iter(scorer.score(rows, starts, batch_size, report, log))
    return [[next(sums) for _ in question.choices] for question in questions]


def compute_accuracies(
    questions: Sequence[Question], scores: Sequence[Sequence[float]]
) -> dict[str, float]:
    """Computes accuracies: by log probability, by log probability per byte, and of chance.

    Log probability per byte does not favour short answers; Brown et al. (2020, section 2.4)
    normalise per token instead.

    Args:
      questions: Questions.
      scores: For each question, the log probability of each choice.

    Returns:
      `accuracy`, `accuracy_per_byte` and `chance`, as fractions.
    """
    num_correct, num_correct_per_byte = 0, 0
    for question, row in zip(questions, scores, strict=True):
        sizes = [max(1, len(choice.encode())) for choice in question.choices]
        num_correct += int(np.argmax(row)) == question.answer
        num_correct_per_byte += int(np.argmax(np.divide(row, sizes))) == question.answer
    chance = float(np.mean([1 / len(question.choices) for question in questions]))
    total = len(questions)
    return {
        "accuracy": num_correct / total,
        "accuracy_per_byte": num_correct_per_byte / total,
        "chance": chance,
    }


def _common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Returns the length of the common prefix of two token sequences."""
    pairs = zip(first, second, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
