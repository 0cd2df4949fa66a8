"""The GLUE tasks (Wang et al. 2019) as one table: files, metrics and published results.

Other tasks of one or two sentences in the same file format are further rows. A row is a `GlueTask`,
a split of it a `GlueSplit`. Labels have the order of their integers in tensorflow-datasets and the
spelling of the evaluation server. A task without labels is a regression with scores from 0 to 5. If
the labels are numbers, `names` are the class names of tensorflow-datasets.

Published results: dev sets, single models, in percent; CoLA Matthews, STS-B Pearson (ELECTRA:
Spearman), MRPC and QQP accuracy (not stated by the source for the first and last row), MNLI
matched. Sources: the released code of Sanh et al. 2019 (BERT-base and DistilBERT, uncased; table 1
of the paper has other figures for MNLI, which contradict its averages); Liu et al. 2019, table 5
(BERT-large and RoBERTa); Lan et al. 2020, table 9 (ALBERT, 1.5 M steps); Clark et al. 2020, table 3
(ELECTRA, 1.75 M steps).
"""

import dataclasses
import re
from collections.abc import Sequence

from bertjax import catalog
from bertjax.errors import UserError
from bertjax.metrics.sequences import REGRESSION, SINGLE_LABEL

HIGHEST_SCORE = 5.0
"""Maximum score of a regression: STS-B's similarities are in [0, 5]."""

Column = str | int
"""The name of a column in the header line, or its index, from 0, in files without a header."""


@dataclasses.dataclass(frozen=True)
class GlueSplit:
    """One split of a task.

    Attributes:
      name: `train`, `dev`, `test`, or another evaluation split.
      files: File names to look for, in order of preference; the first existing one is read.
      tfds: Name of the split in tensorflow-datasets; `CONFIG:SPLIT` if in another config.
      server: Stem of the prediction file for the evaluation server; empty for `train`.
      texts: Columns of the one or two sentences.
      label: Column of the label.
      header: Whether the first line has the names of the columns.
      labelled: Whether labels are required; an unlabelled split may still have the column.
    """

    name: str
    files: tuple[str, ...]
    tfds: str
    server: str
    texts: tuple[Column, ...]
    label: Column
    header: bool = True
    labelled: bool = True


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """One task of the benchmark.

    Attributes:
      name: Name in configs and in tensorflow-datasets.
      folder: Folder of the released files.
      labels: Spelling of each class; empty for a regression.
      metrics: Names of functions in `bertjax.metrics.classification`.
      splits: `train` first, then the evaluation splits.
      tfds_texts: Names of the one or two sentences in tensorflow-datasets.
      names: Names of the classes where `labels` are numbers.
      broken_lines: Whether the released train file has examples with a line break inside a text;
        their fragments are skipped and counted.
    """

    name: str
    folder: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    splits: tuple[GlueSplit, ...]
    tfds_texts: tuple[str, ...]
    names: tuple[str, ...] = ()
    broken_lines: bool = False

    @property
    def num_labels(self) -> int:
        """C: the number of classes, or 1 for a regression."""
        return len(self.labels) or 1

    @property
    def problem_type(self) -> str:
        """As in the `config.json` of transformers."""
        return SINGLE_LABEL if self.labels else REGRESSION

    def split(self, name: str) -> GlueSplit:
        """Returns the split with this name."""
        return next(split for split in self.splits if split.name == name)

    def order(self, given: Sequence[str]) -> tuple[int, ...]:
        """Returns the position of each class in `given`, which names all classes in any order.

        Names are compared without regard to case, spaces, `_` and `-`.

        Raises:
          UserError: `given` are not the names of the classes.
        """
        found = [_comparable(name) for name in given]
        for known in (self.labels, self.names):
            classes = [_comparable(name) for name in known]
            if sorted(found) == sorted(classes):
                return tuple(found.index(name) for name in classes)
        raise UserError(
            f"classes of {self.name}: got {', '.join(given)}, expected "
            f"{', '.join(self.names or self.labels)} in any order"
        )

    def class_names(self, given: Sequence[str]) -> tuple[str, ...]:
        """Returns the class names to print: `given` if not empty, else `labels`.

        Raises:
          UserError: `given` are not the names of the classes in the order of the table.
        """
        if given and self.order(given) != tuple(range(len(given))):
            raise UserError(
                f"classes of {self.name}: got {', '.join(given)}, expected them in the order "
                f"{', '.join(self.names or self.labels)}"
            )
        return tuple(given) or self.labels


def _comparable(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).casefold()


def _splits(server: str, texts: tuple[str, ...], label: str) -> tuple[GlueSplit, ...]:
    """Returns the usual splits: train.tsv, dev.tsv, unlabelled test.tsv, all with header lines."""
    return (
        GlueSplit("train", ("train.tsv",), "train", "", texts, label),
        GlueSplit("dev", ("dev.tsv",), "validation", server, texts, label),
        GlueSplit("test", ("test.tsv",), "test", server, texts, label, labelled=False),
    )


_COLA = (
    GlueSplit("train", ("train.tsv",), "train", "", (3,), 1, header=False),
    GlueSplit("dev", ("dev.tsv",), "validation", "CoLA", (3,), 1, header=False),
    GlueSplit("test", ("test.tsv",), "test", "CoLA", ("sentence",), "label", labelled=False),
)

PARAPHRASE_TRAIN = "msr_paraphrase_train.txt"
"""Microsoft's release of MRPC: train and dev in one file; `PARAPHRASE_DEV_IDS` lists dev."""
PARAPHRASE_DEV_IDS = ("dev_ids.tsv", "mrpc_dev_ids.tsv")
PARAPHRASE_ID_COLUMNS = ("#1 ID", "#2 ID")

_MRPC_TEXTS = ("#1 String", "#2 String")
_MRPC_TEST_FILES = ("test.tsv", "msr_paraphrase_test.txt", "msr_test_labelled.tsv")
_MRPC = (
    GlueSplit("train", ("train.tsv", PARAPHRASE_TRAIN), "train", "", _MRPC_TEXTS, "Quality"),
    GlueSplit("dev", ("dev.tsv", PARAPHRASE_TRAIN), "validation", "MRPC", _MRPC_TEXTS, "Quality"),
    GlueSplit("test", _MRPC_TEST_FILES, "test", "MRPC", _MRPC_TEXTS, "Quality", labelled=False),
)

_PAIR = ("sentence1", "sentence2")
_STSB_TEST_FILES = ("test.tsv", "test_labelled.tsv")
_STSB = (
    *_splits("STS-B", _PAIR, "score")[:2],
    GlueSplit("test", _STSB_TEST_FILES, "test", "STS-B", _PAIR, "score", labelled=False),
)

_GOLD = "gold_label"
_MNLI = (
    GlueSplit("train", ("train.tsv",), "train", "", _PAIR, _GOLD),
    GlueSplit("dev", ("dev_matched.tsv",), "validation_matched", "MNLI-m", _PAIR, _GOLD),
    GlueSplit(
        "dev_mismatched",
        ("dev_mismatched.tsv",),
        "validation_mismatched",
        "MNLI-mm",
        _PAIR,
        _GOLD,
    ),
    GlueSplit(
        "test", ("test_matched.tsv",), "test_matched", "MNLI-m", _PAIR, _GOLD, labelled=False
    ),
    GlueSplit(
        "test_mismatched",
        ("test_mismatched.tsv",),
        "test_mismatched",
        "MNLI-mm",
        _PAIR,
        _GOLD,
        labelled=False,
    ),
    GlueSplit(
        "diagnostic",
        ("../diagnostic/diagnostic.tsv", "../AX/AX.tsv", "../AX/test.tsv"),
        "ax:test",
        "AX",
        _PAIR,
        "label",
        labelled=False,
    ),
)

_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_SENTIMENT = ("negative", "positive")
_QUESTIONS = ("question1", "question2")

GLUE = (
    GlueTask(
        "cola",
        "CoLA",
        _BINARY,
        ("matthews",),
        _COLA,
        ("sentence",),
        names=("unacceptable", "acceptable"),
    ),
    GlueTask(
        "sst2",
        "SST-2",
        _BINARY,
        ("accuracy",),
        _splits("SST-2", ("sentence",), "label"),
        ("sentence",),
        names=_SENTIMENT,
    ),
    GlueTask(
        "mrpc",
        "MRPC",
        _BINARY,
        ("accuracy", "f1"),
        _MRPC,
        _PAIR,
        names=("not_equivalent", "equivalent"),
    ),
    GlueTask("stsb", "STS-B", (), ("pearson", "spearman"), _STSB, _PAIR),
    GlueTask(
        "qqp",
        "QQP",
        _BINARY,
        ("accuracy", "f1"),
        _splits("QQP", _QUESTIONS, "is_duplicate"),
        _QUESTIONS,
        names=("not_duplicate", "duplicate"),
        broken_lines=True,
    ),
    GlueTask(
        "mnli",
        "MNLI",
        ("entailment", "neutral", "contradiction"),
        ("accuracy",),
        _MNLI,
        ("premise", "hypothesis"),
    ),
    GlueTask(
        "qnli",
        "QNLI",
        _ENTAILMENT,
        ("accuracy",),
        _splits("QNLI", ("question", "sentence"), "label"),
        ("question", "sentence"),
    ),
    GlueTask("rte", "RTE", _ENTAILMENT, ("accuracy",), _splits("RTE", _PAIR, "label"), _PAIR),
    GlueTask(
        "wnli",
        "WNLI",
        _BINARY,
        ("accuracy",),
        _splits("WNLI", _PAIR, "label"),
        _PAIR,
        names=("not_entailment", "entailment"),
    ),
)


CHINESE = tuple(
    GlueTask(
        name,
        name,
        _BINARY,
        ("accuracy",),
        tuple(
            GlueSplit(
                split,
                (f"{split}.tsv",),
                split,
                "" if split == "train" else name,
                ("text_a",),
                "label",
            )
            for split in ("train", "dev", "test")
        ),
        ("text_a",),
        names=_SENTIMENT,
    )
    for name in ("book_review", "chnsenticorp")
)
"""Chinese sentiment tasks in the format of the K-BERT release; their test splits have labels."""

TASKS = (*GLUE, *CHINESE)


def glue_task(name: str) -> GlueTask:
    """Returns the task of this name; see `catalog.find_named`."""
    return catalog.find_named(TASKS, name, "GLUE task")


PUBLISHED_TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
"""The columns of `PUBLISHED_ROWS`."""

# Sources and metrics: see the top of this file.
PUBLISHED_ROWS: dict[str, tuple[float | None, ...]] = {
    "BERT-base": (56.3, 92.7, 88.6, 89.0, 89.6, 84.7, 91.8, 69.3, 53.5),
    "BERT-large": (60.6, 93.2, 88.0, 90.0, 91.3, 86.6, 92.3, 70.4, None),
    "RoBERTa-large": (68.0, 96.4, 90.9, 92.4, 92.2, 90.2, 94.7, 86.6, 91.3),
    "ALBERT-xxlarge": (71.4, 96.9, 90.9, 93.0, 92.2, 90.8, 95.3, 89.2, None),
    "ELECTRA-large": (69.1, 96.9, 90.8, 92.6, 92.4, 90.9, 95.0, 88.0, None),
    "DistilBERT": (51.3, 91.3, 87.5, 86.9, 88.5, 82.1, 89.2, 59.9, 56.3),
}
