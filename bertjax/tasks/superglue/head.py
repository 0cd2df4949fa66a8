"""Head of SuperGLUE's tasks of text pairs: the sequence head with the classes of a table row."""

from typing import Annotated

from bertjax.constraints import OneOf
from bertjax.tasks.sequence.head import ClassifierHead
from bertjax.tasks.superglue.table import names_of


class Task(ClassifierHead, kw_only=True):
    """Linear classifier on [CLS] of a text pair (Wang et al. 2019, SuperGLUE, section 4.1).

    MultiRC classifies every answer as right or wrong, ReCoRD every candidate entity, one by one.

    Attributes:
      dataset: Name of the task in `tasks/superglue/table.py`.
    """

    dataset: Annotated[str, OneOf(names_of("superglue"))]
