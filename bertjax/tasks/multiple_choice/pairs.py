"""Encode every option of every question as a sequence: option c of question i is row i * C + c.

RACE: [CLS] article [SEP] question and option [SEP]. SWAG: [CLS] sentence [SEP] start and ending
[SEP]. Both as in the published systems (Liu et al. 2019, section 5.3; Devlin et al. 2019, 4.4).
"""

import re
from collections.abc import Callable, Mapping

from bertjax.errors import UserError, nearest
from bertjax.interfaces import Tokenizer
from bertjax.tasks import sequences
from bertjax.tasks.multiple_choice.files import Choices
from bertjax.tasks.sequences import Pairs

_BLANK = re.compile("_+")


def with_option(question: str, option: str) -> str:
    """Puts an option of RACE into the blanks of its question, or after a question without any."""
    if _BLANK.search(question):
        return _BLANK.sub(lambda _: option, question)
    return f"{question} {option}"


def with_ending(start: str, ending: str) -> str:
    """Appends an ending of SWAG to the start of its sentence."""
    return f"{start} {ending}"


DATASETS: Mapping[str, tuple[Callable[[str, str], str], str]] = {
    "race": (with_option, "first"),
    "swag": (with_ending, "longer"),
}
"""(function that joins question and option, truncation strategy of `sequences.TRUNCATIONS`).

RACE truncates the article only, since a question without its option cannot be answered.
"""


def encode(
    choices: Choices,
    tokenizer: Tokenizer,
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
      max_seq_length: Maximum length in tokens; longer sequences are truncated.
      dataset: `race` or `swag`.
      cls_last: Whether [CLS] is the last token of each sequence.
      max_chars_per_word: Characters per word for a `char_ids` column; 0 for no column.

    Raises:
      UserError: the data set is unknown, or `sequences.encode` raises.
    """
    if dataset not in DATASETS:
        raise UserError(
            f"unknown multiple-choice data set {dataset!r}: {nearest(dataset, DATASETS)}"
        )
    join, truncate = DATASETS[dataset]
    rows = list(zip(choices.contexts, choices.questions, choices.options, strict=True))
    contexts = [context for context, _, options in rows for _ in options]
    seconds = [join(question, option) for _, question, options in rows for option in options]
    return sequences.encode(
        (contexts, seconds),
        tokenizer,
        max_seq_length,
        cls_last=cls_last,
        max_chars_per_word=max_chars_per_word,
        truncate=truncate,
    )
