"""K-BERT (Liu et al. 2020): `configs/kbert.py:TASK`, `:TASK,small`, `:TASK,tiny`.

    bertjax finetune --config configs/kbert.py:book_review --init runs/bert_chinese --data kbert \
        --workdir runs/kbert
    bertjax finetune --config configs/kbert.py:book_review --init runs/bert_chinese --data kbert \
        --workdir runs/plain --config.data.knowledge=''

The second is the same without the graph. `runs/bert_chinese` is any BERT of Chinese: a run of
`configs/bert_wwm.py:chinese`, or bert-base-chinese by `bertjax import`. `--data` is the folder that
holds `book_review/`, `chnsenticorp/` and `kgs/HowNet.spo`; `config.data.knowledge` is any other
graph, from there.

Recipe: BERT's (`configs/glue.py`, where `small` and `tiny` stand) with sequences of 256 tokens,
those of the graph included, 2 triples an entity, 5 epochs, a rate of 2e-5. K-BERT adds no
parameters to its BERT.

Published accuracy, dev / test, of BERT-base (Google's, Chinese) without and with HowNet:

    task           BERT          K-BERT
    book_review    88.3 / 87.5   88.6 / 87.2
    chnsenticorp   93.3 / 94.3   94.6 / 95.6

Where we differ: names are found in the text by longest match with the graph's subjects (published:
words of a segmenter), and triples never push the end of a text out.
"""

from ml_collections import ConfigDict

from configs import common, glue

TASKS = ("book_review", "chnsenticorp")
RECIPES = glue.SIZES_OF_BERT


def get_config(argument: str) -> ConfigDict:
    """The recipe for a task, for a base-sized encoder unless another recipe is named.

    Raises:
      UserError: there is no such task or recipe.
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
