"""The SuperGLUE tasks (Wang et al. 2019) as one table: files, texts, answers, heads.

The heads are those of the paper's BERT baselines (section 4.1), with these differences: the marked
words of WiC are pooled by attention, as are the spans of WSC; the head of WSC also reads [CLS]; the
question of COPA is the conjunction "because" or "so", between premise and alternative; only the
passages of BoolQ, MultiRC and ReCoRD are truncated. The server computes the gender parity of AX-g.
"""

import dataclasses

from bertjax import catalog
from bertjax.tasks.superglue import records
from bertjax.tasks.superglue.answers import AnswerKind, AnswerSets, ClassAnswers, EntityAnswers
from bertjax.tasks.superglue.records import RowReader


@dataclasses.dataclass(frozen=True)
class SuperGlueSplit:
    """One split of a task.

    Attributes:
      name: `train`, `dev`, `test`, or that of a diagnostic test set.
      file: Path of the file, relative to the folder of the task.
      server: Stem of the prediction file for the evaluation server; empty for `train`.
      read: Converts a record to rows.
      answers: The kind of the answers.
      required: Whether the file must exist and have labels.
    """

    name: str
    file: str
    server: str
    read: RowReader
    answers: AnswerKind
    required: bool


@dataclasses.dataclass(frozen=True)
class SuperGlueTask:
    """One task of the benchmark.

    Attributes:
      name: Name in configs.
      folder: Folder of the released files.
      head: The task folder with the head: `superglue`, `span_pair` or `multiple_choice`.
      texts: Names of the texts of a row in predictions of user inputs.
      splits: `train` first, then the evaluation splits.
      truncate: Which text is truncated, a key of `sequences.TRUNCATIONS`.
    """

    name: str
    folder: str
    head: str
    texts: tuple[str, ...]
    splits: tuple[SuperGlueSplit, ...]
    truncate: str = "longer"

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes of a row."""
        return self.splits[0].answers.labels

    @property
    def metrics(self) -> tuple[str, ...]:
        """The official metrics; the score of the task is their mean."""
        return self.splits[0].answers.metrics

    def split(self, name: str) -> SuperGlueSplit:
        """Returns the split with this name."""
        return next(split for split in self.splits if split.name == name)


def _task(
    name: str,
    folder: str,
    answers: AnswerKind,
    read: RowReader,
    texts: tuple[str, ...],
    *,
    head: str = "superglue",
    truncate: str = "longer",
    diagnostics: tuple[SuperGlueSplit, ...] = (),
) -> SuperGlueTask:
    splits = (
        SuperGlueSplit("train", "train.jsonl", "", read, answers, True),
        SuperGlueSplit("dev", "val.jsonl", folder, read, answers, True),
        SuperGlueSplit("test", "test.jsonl", folder, read, answers, False),
    )
    return SuperGlueTask(name, folder, head, texts, splits + diagnostics, truncate)


_TRUTH = ("false", "true")
_ENTAILMENT = ("entailment", "not_entailment")
_INFERENCE = ("premise", "hypothesis")

_DIAGNOSTICS = (
    SuperGlueSplit(
        "diagnostic_broad",
        "../AX-b/AX-b.jsonl",
        "AX-b",
        records.pair_reader("sentence1", "sentence2"),
        ClassAnswers(_ENTAILMENT, ("matthews",)),
        False,
    ),
    SuperGlueSplit(
        "diagnostic_gender",
        "../AX-g/AX-g.jsonl",
        "AX-g",
        records.pair_reader(*_INFERENCE),
        ClassAnswers(_ENTAILMENT),
        False,
    ),
)

TASKS = (
    _task(
        "boolq",
        "BoolQ",
        ClassAnswers(_TRUTH),
        records.pair_reader("passage", "question"),
        ("passage", "question"),
        truncate="first",
    ),
    _task(
        "cb",
        "CB",
        ClassAnswers(("entailment", "contradiction", "neutral"), ("accuracy", "macro_f1")),
        records.pair_reader(*_INFERENCE),
        _INFERENCE,
    ),
    _task(
        "copa",
        "COPA",
        ClassAnswers(("0", "1"), as_numbers=True),
        records.read_copa,
        ("premise", "question", "choice1", "choice2"),
        head="multiple_choice",
    ),
    _task(
        "multirc",
        "MultiRC",
        AnswerSets(),
        records.read_multirc,
        ("paragraph", "question_and_answer"),
        truncate="first",
    ),
    _task(
        "record",
        "ReCoRD",
        EntityAnswers(),
        records.read_record,
        ("passage", "statement"),
        truncate="first",
    ),
    _task(
        "rte",
        "RTE",
        ClassAnswers(_ENTAILMENT),
        records.pair_reader(*_INFERENCE),
        _INFERENCE,
        diagnostics=_DIAGNOSTICS,
    ),
    _task(
        "wic",
        "WiC",
        ClassAnswers(_TRUTH),
        records.read_wic,
        ("sentence1", "sentence2"),
        head="span_pair",
    ),
    _task(
        "wsc",
        "WSC",
        ClassAnswers(("False", "True")),
        records.read_wsc,
        ("text",),
        head="span_pair",
    ),
)
"""The tasks in the order of the paper."""


def names_of(head: str) -> tuple[str, ...]:
    """Returns the names of the tasks that have a head."""
    return tuple(task.name for task in TASKS if task.head == head)


def superglue_task(name: str) -> SuperGlueTask:
    """Returns the task of this name; see `catalog.find_named`."""
    return catalog.find_named(TASKS, name, "SuperGLUE task")
