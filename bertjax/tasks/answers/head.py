"""Extractive question answering head for user tables: that of SQuAD."""

from bertjax.tasks.squad import head


class Task(head.Task):
    """Extractive question answering (Devlin et al. 2019, sections 4.2 and 4.3)."""

    exchanged_as = "squad"
