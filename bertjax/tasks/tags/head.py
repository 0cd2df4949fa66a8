"""Token classification head for user tables: that of NER, with the tags of the data."""

from bertjax.constraints import AnyText
from bertjax.tasks.ner import head


class Task(head.Task):
    """Token classification (Devlin et al. 2019, section 5.3) of a user's own tags.

    Attributes:
      column: Column of the words or of the text; written by the run.
      reads_text: Whether that column has texts, which are split into words; written by the run.
    """

    column: AnyText = "tokens"
    reads_text: bool = False

    fields_from_data = ("labels", "column", "reads_text")
    exchanged_as = "ner"
