"""Multiple-choice head for user tables; the data determines the number of choices."""

from bertjax.constraints import AnyText
from bertjax.tasks.multiple_choice import head


class Task(head.Task):
    """Multiple choice (Devlin et al. 2019, section 4.4) of a user's own questions.

    `num_choices` is the largest number of choices of a question of the data; `dataset` is the one
    with the same sequences, RACE.

    Attributes:
      columns: Column of the question, and of the context if there is one; written by the run.
    """

    columns: tuple[AnyText, ...] = ("question",)

    fields_from_data = ("dataset", "num_choices", "columns")
    exchanged_as = "multiple_choice"
