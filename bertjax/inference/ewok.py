"""World knowledge, as in EWoK: a target is more likely after the context that it fits.

read         tables in EWoK's layout (Ivanova et al. 2024) -> items
score        scorer, items -> the log probability of each target after each context
accuracies   scores -> the share of correct comparisons, by domain
"""

import collections
import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from bertjax.errors import UserError
from bertjax.inference import multiple_choice
from bertjax.inference.multiple_choice import Question
from bertjax.inference.score_log import ScoreLog
from bertjax.inference.sentence_scores import Scorer
from bertjax.tasks.sequence import files

COLUMNS = ("Domain", "Context1", "Context2", "Target1", "Target2")

Scores = list[tuple[list[float], list[float]]]
"""Log probabilities of both targets, in nats, after the first and after the second context."""


@dataclasses.dataclass(frozen=True)
class Item:
    """Two contexts and two targets, of which the first fits the first, the second the second.

    Attributes:
      domain: Name of the domain of knowledge.
      contexts: The contexts.
      targets: The targets.
      where: Its file and line, for error messages.
    """

    domain: str
    contexts: tuple[str, str]
    targets: tuple[str, str]
    where: str = dataclasses.field(default="item", compare=False)


def read(paths: Sequence[str]) -> list[Item]:
    """Reads tables with the columns `Domain`, `Context1`, `Context2`, `Target1` and `Target2`.

    Args:
      paths: CSV, TSV, JSON lines, Parquet or Arrow; the released CSV files start with a comment.

    Raises:
      UserError: a file is missing or no table, a column is missing, or a text is empty.
    """
    table = files.read_tables(paths)
    if missing := [name for name in COLUMNS if name not in table.columns]:
        raise UserError(
            f"{table.path} has no column {missing[0]!r}: got {', '.join(table.columns)}, expected "
            f"{', '.join(COLUMNS)}, as in EWoK"
        )
    items = []
    rows = zip(*(table.columns[name] for name in COLUMNS), strict=True)
    for location, row in zip(table.locations, rows, strict=True):
        for name, value in zip(COLUMNS, row, strict=True):
            if not isinstance(value, str) or not value.strip():
                raise UserError(
                    f"{location}: {name}: got {value!r}, expected a text; fix or remove the row"
                )
        domain, *texts = row
        items.append(Item(domain, (texts[0], texts[1]), (texts[2], texts[3]), location))
    return items


def score(
    scorer: Scorer,
    items: Sequence[Item],
    *,
    batch_size: int,
    progress: Callable[[float, str], None],
    log: ScoreLog | None = None,
) -> Scores:
    """Scores the tokens of each target after each context and a space.

    Args:
      scorer: The model.
      items: Items.
      batch_size: Sequences per batch.
      progress: Called with the share of the work that is done, and a line of text.
      log: Log of finished scores; see `Scorer.score`.

    Raises:
      UserError: a context with a target is longer than the model's positions.
    """
    questions = [
        Question(context, item.targets, number, item.where)
        for item in items
        for number, context in enumerate(item.contexts)
    ]
    found = multiple_choice.score_choices(
        scorer,
        questions,
        [""] * len(questions),
        batch_size=batch_size,
        progress=progress,
        log=log,
    )
    return list(zip(found[::2], found[1::2], strict=True))


def accuracies(items: Sequence[Item], scores: Scores) -> dict[str, float]:
    """Returns the accuracy of each domain, the one over all items, and the mean over domains.

    Each item has two comparisons, which count half each: a target is correct if it is more likely
    after its own context; equal probabilities count half (Ivanova et al. 2024, section 4 and the
    script of the analysis).

    Args:
      items: Items.
      scores: Log probabilities of each item.
    """
    correct: dict[str, list[float]] = collections.defaultdict(list)
    for item, (first, second) in zip(items, scores, strict=True):
        margins = [first[0] - second[0], second[1] - first[1]]
        correct[item.domain].extend(np.heaviside(margins, 0.5).tolist())
    shares = {name: float(np.mean(found)) for name, found in sorted(correct.items())}
    return shares | {
        "accuracy": float(np.mean([value for found in correct.values() for value in found])),
        "mean_of_domains": float(np.mean(list(shares.values()))),
    }
