"""Cross-lingual benchmarks as one table: columns of the released files, classes.

XNLI (Conneau et al. 2018) is natural language inference in 15 languages, trained on MultiNLI or on
its machine translations. MLDoc (Schwenk and Li 2018) is classification of news in 8 languages; any
files in its format have the same reader, with the classes of the training files.
"""

import dataclasses
from collections.abc import Mapping

from bertjax import catalog

LANGUAGE = "{language}"
"""The part of a file name that is replaced by a language."""


@dataclasses.dataclass(frozen=True)
class MultilingualTask:
    """One benchmark.

    Attributes:
      name: Name in configs.
      texts: Names of the one or two texts in predictions of user inputs.
      headers: The columns of texts and label, by name; the first of them that a file has is read.
        Empty for files without a header line.
      columns: Indices of the columns of texts and label in files without a header line.
      labels: Names of the classes; empty for those of the training files.
      synonyms: Other spellings of the classes in some files.
    """

    name: str
    texts: tuple[str, ...]
    headers: tuple[tuple[str, ...], ...] = ()
    columns: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()
    synonyms: Mapping[str, str] = dataclasses.field(default_factory=dict)


TASKS = (
    MultilingualTask(
        "xnli",
        ("premise", "hypothesis"),
        headers=(("sentence1", "sentence2", "gold_label"), ("premise", "hypo", "label")),
        labels=("entailment", "neutral", "contradiction"),
        synonyms={"contradictory": "contradiction"},
    ),
    MultilingualTask("mldoc", ("text",), columns=(1, 0)),
)

NAMES = tuple(task.name for task in TASKS)


def multilingual_task(name: str) -> MultilingualTask:
    """Returns the benchmark of this name; see `catalog.find_named`."""
    return catalog.find_named(TASKS, name, "multilingual task")
