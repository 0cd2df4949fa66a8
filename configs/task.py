r"""Fine-tuning on a table of your own: `configs/task.py`, `configs/task.py:RECIPE`.

Classification, with one or several labels per text, and regression of one text or a pair of texts,
from CSV, TSV, JSON lines, Parquet or Arrow. Batches, epochs, dropout and the optimizer are those
of `configs/glue.py`, with its recipes `small` and `tiny` for smaller encoders, but the epoch with
the best dev score is reported.

    bertjax finetune --config configs/task.py --data reviews.csv --text text --label category \
        --init runs/bert --workdir runs/reviews
    bertjax finetune --config configs/task.py:small --data banking77/ --init runs/mini \
        --workdir runs/banking77 --config.num_train_epochs=20 \
        --config.early_stopping_patience=3 --config.task.class_weights="('balanced',)"
"""

from ml_collections import ConfigDict

from configs import glue

RECIPES = ("small", "tiny")


def get_config(argument: str = "") -> ConfigDict:
    """Returns the config, with the recipe for base-sized encoders by default.

    Raises:
      UserError: Unknown recipe.
    """
    section = {"name": "sequence", "classifier_dropout": 0.1, "pooler_act": "tanh"}
    config = glue.another_task(section, argument)
    config.choose_epoch = "best"
    config.early_stopping_patience = 0  # epochs without a better dev score; 0 trains all epochs
    config.task.problem_type = ""  # classes, several labels or scores: as the labels look like
    config.task.eval_metrics = ()  # those of the problem type; the first is the dev score
    config.task.class_weights = ()  # ("balanced",) or ("LABEL=WEIGHT", ...)
    config.data.text = ""  # columns: --text, --text_pair, --label; "" for common names
    config.data.text_pair = ""
    config.data.label = ""
    config.data.label_separator = ""  # of several labels in a cell
    config.data.validation_fraction = None  # becomes dev, if there is no dev file; None: 0.1
    config.data.split_seed = None  # of the choice of these rows; None: 0
    return config
