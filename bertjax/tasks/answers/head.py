"""Extractive QA head for a table: that of SQuAD."""

from bertjax.tasks.squad import head


class Task(head.Task):
    """Extractive question answering (Devlin et al. 2019, sections 4.2 and 4.3)."""

    exchanged_as = "squad"
