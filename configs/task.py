r"""Fine-tuning on a table of your own: `configs/task.py`, `configs/task.py:RECIPE`.

Classification, with one or several labels per text, and regression of one text or a pair of texts,
from CSV, TSV, JSON lines, Parquet or Arrow; `tags` classifies words or labelled spans of a text,
`choices` chooses among answers, `answers` extracts them from a context, with the heads of
`configs/ner.py`, `configs/race.py` and `configs/squad.py`. Batches, epochs, dropout and the
optimizer are those of `configs/glue.py`, with its recipes `small` and `tiny` for smaller encoders,
but the epoch with the best dev score is reported.

    bertjax finetune --config configs/task.py --data reviews.csv --text text --label category \
        --init runs/bert --workdir runs/reviews
    bertjax finetune --config configs/task.py:small --data banking77/ --init runs/mini \
        --workdir runs/banking77 --config.num_train_epochs=20 \
        --config.early_stopping_patience=3 --config.task.class_weights="('balanced',)"
    bertjax finetune --config configs/task.py:tags --data entities.jsonl --text tokens \
        --label tags --init runs/bert --workdir runs/entities
    bertjax finetune --config configs/task.py:choices,small --data quiz.jsonl --init runs/mini \
        --workdir runs/quiz
    bertjax finetune --config configs/task.py:answers --data answers.parquet --init runs/bert \
        --workdir runs/answers
"""

from ml_collections import ConfigDict

from configs import common, glue

KINDS = ("tags", "choices", "answers")
RECIPES = (
    *("small", "tiny"),
    *(f"{kind}{size}" for kind in KINDS for size in ("", ",small", ",tiny")),
)
_SECTIONS = {
    "tags": {"name": "tags", "labels": (), "classifier_dropout": 0.1},
    "choices": {"name": "choices", "classifier_dropout": 0.1, "pooler_act": "tanh"},
    "answers": {"name": "answers", "n_best_size": 20},
}


def get_config(argument: str = "") -> ConfigDict:
    """Returns the config, with the recipe for base-sized encoders by default.

    Raises:
      UserError: Unknown recipe.
    """
    common.check_argument(argument, ("", *RECIPES))
    kind, _, size = argument.partition(",")
    if kind in KINDS:
        return _config_of_kind(kind, size)
    section = {"name": "sequence", "classifier_dropout": 0.1, "pooler_act": "tanh"}
    config = _table_config(section, argument)
    config.task.problem_type = ""  # classes, several labels or scores; "": by the labels
    config.task.eval_metrics = ()  # those of the problem type; the first is the dev score
    config.task.class_weights = ()  # ("balanced",) or ("LABEL=WEIGHT", ...)
    config.data.text_pair = ""
    config.data.label_separator = ""  # of several labels in a cell
    return config


def _table_config(section: dict, size: str) -> ConfigDict:
    """Returns the fields that all kinds of tasks on tables have."""
    config = glue.another_task(section, size)
    config.choose_epoch = "best"
    config.keep_checkpoints = True  # the model is the result
    config.early_stopping_patience = 0  # epochs without a better dev score; 0 trains all epochs
    config.data.text = ""  # columns: --text, --text_pair, --label; "" for common names
    config.data.label = ""
    config.data.validation_fraction = None  # becomes dev, if there is no dev file; None: 0.1
    config.data.split_seed = None  # of the choice of these rows; None: 0
    return config


def _config_of_kind(kind: str, size: str) -> ConfigDict:
    """Returns the config of another kind than classes and scores of texts."""
    config = _table_config(_SECTIONS[kind], size)
    if kind == "choices":
        config.data.text_pair = ""
        config.data.choices = ()  # a column of lists, or a column for each choice
        config.data.batch_size = 8 if size == "tiny" else 16  # questions
        config.data.eval_batch_size = 16
    if kind == "answers":
        config.data.update(
            text_pair="",
            unanswerable=False,
            doc_stride=16 if size == "tiny" else 128,
            max_query_length=8 if size == "tiny" else 64,
            max_answer_length=30,
            null_threshold=None,
        )
        if size != "tiny":
            config.data.update(max_seq_length=384, padded_lengths=(128, 192, 256, 320, 384))
        if not size:
            config.optimizer.learning_rate = 5e-5
    if kind == "tags" and not size:
        config.optimizer.learning_rate = 5e-5
    return config
