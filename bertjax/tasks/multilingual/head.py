"""Head of cross-lingual benchmarks: a linear layer on the pooled output."""

from typing import Annotated

from bertjax.constraints import OneOf
from bertjax.tasks.multilingual.table import NAMES
from bertjax.tasks.sequence.head import ClassifierHead


class Task(ClassifierHead, kw_only=True):
    """Classification of one or two texts, with one classifier for all languages.

    Attributes:
      dataset: Name of the benchmark in `tasks/multilingual/table.py`.
    """

    dataset: Annotated[str, OneOf(NAMES)]
