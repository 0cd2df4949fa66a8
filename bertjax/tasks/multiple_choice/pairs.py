"""Encode every option of every question as a sequence: option c of question i is row i * C + c.

RACE is [CLS] article [SEP] question with option [SEP], SWAG [CLS] sentence [SEP] beginning and
ending [SEP], as published systems have them.
"""

import re
from collections.abc import Callable, Mapping

from bertjax.errors import UserError, nearest
from bertjax.tasks import sequences
from bertjax.tasks.multiple_choice.files import Choices
from bertjax.tasks.sequences import Pairs

_BLANK = re.compile("_+")


def with_option(question: str, option: str) -> str:
    """A question of RACE with an option in its blanks, or behind it where it has none."""
    if _BLANK.search(question):
        return _BLANK.sub(lambda _: option, question)
    return f"{question} {option}"


def with_ending(beginning: str, ending: str) -> str:
    """A beginning of SWAG with an ending."""
    return f"{beginning} {ending}"


DATASETS: Mapping[str, tuple[Callable[[str, str], str], str]] = {
    "race": (with_option, "first"),
    "swag": (with_ending, "longer"),
}
"""How a question and an option are one text, and which text loses its end (`pairs.TRUNCATIONS`).

An article of RACE is long, and a question without its end cannot be answered.
"""


def encode(
    choices: Choices,
    tokenizer,
    max_seq_length: int,
    *,
    dataset: str,
    cls_last: bool = False,
    max_chars_per_word: int = 0,
) -> Pairs:
    """Tokenizes all options of all questions.

    Args:
      choices: The questions.
      tokenizer: An `interfaces.Tokenizer` with [CLS] and [SEP].
      max_seq_length: Longer sequences lose the end of a text.
      dataset: `race` or `swag`.
      cls_last: Whether [CLS] ends the sequences.
      max_chars_per_word: Characters of each word, as `char_ids`; 0 for none.

    Raises:
      UserError: there is no such data set, or `pairs.encode` refuses.
    """
    if dataset not in DATASETS:
        raise UserError(f"no multiple-choice data set {dataset!r}: {nearest(dataset, DATASETS)}")
    joined, truncate = DATASETS[dataset]
    asked = list(zip(choices.contexts, choices.questions, choices.options, strict=True))
    contexts = [context for context, _, options in asked for _ in options]
    seconds = [joined(question, option) for _, question, options in asked for option in options]
    return sequences.encode(
        (contexts, seconds),
        tokenizer,
        max_seq_length,
        cls_last=cls_last,
        max_chars_per_word=max_chars_per_word,
        truncate=truncate,
    )
