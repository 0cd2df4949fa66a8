r"""K-BERT (Liu et al. 2020): `configs/kbert.py:TASK`, `:TASK,small`, `:TASK,tiny`.

    bertjax finetune --config configs/kbert.py:book_review --init runs/bert_chinese --data kbert \
        --workdir runs/kbert
    bertjax finetune --config configs/kbert.py:book_review --init runs/bert_chinese --data kbert \
        --workdir runs/plain --config.data.knowledge=''

The second command is the baseline without the graph. `runs/bert_chinese` is any Chinese BERT: a run
of `configs/bert_wwm.py:chinese`, or bert-base-chinese converted by `bertjax import`. `--data` is a
folder with `book_review/`, `chnsenticorp/` and `kgs/HowNet.spo`; `config.data.knowledge` selects
another graph in that folder.

Recipe: BERT's (`configs/glue.py`, which also defines `small` and `tiny`) with sequences of 256
tokens including those of the graph, 2 triples per entity, 5 epochs, a learning rate of 2e-5. K-BERT
adds no parameters to BERT.

Published accuracy, dev / test, of BERT-base (Google's, Chinese) without and with HowNet:

    task           BERT          K-BERT
    book_review    88.3 / 87.5   88.6 / 87.2
    chnsenticorp   93.3 / 94.3   94.6 / 95.6

Where we differ: entities are found by longest match with the graph's subjects (published: words of
a segmenter), and the end of a text is never truncated to make room for triples.
"""

from ml_collections import ConfigDict

from configs import common, glue

TASKS = ("book_review", "chnsenticorp")
RECIPES = glue.SIZES_OF_BERT


def get_config(argument: str) -> ConfigDict:
    """Returns the config of a task, with the recipe for base-sized encoders by default.

    Raises:
      UserError: Unknown task or recipe.
    """
    task, _, recipe = argument.partition(",")
    common.check_argument(task, TASKS)
    config = glue.finetuning(task, recipe)
    config.data.knowledge = "kgs/HowNet.spo"
    if recipe != "tiny":
        config.num_train_epochs = 5
        config.data.max_seq_length = 256
        config.data.padded_lengths = (32, 64, 96, 128, 192, 256)
    return config
