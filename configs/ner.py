"""Naming entities: `configs/ner.py:conll2003`, `:conll2003,small`, `:conll2003,tiny`.

Paper: Devlin et al. 2019, section 5.3: a class for the first piece of each word, no CRF, the whole
document around a sentence; cased models; as elsewhere batches of 16 or 32, 2 to 5 epochs and a rate
out of 5e-5, 3e-5, 2e-5. `small` is for BERT-tiny to BERT-medium, with a rate of 1e-4; `tiny` ends
within seconds and is for tests.

    bertjax finetune --config configs/ner.py:conll2003 --init runs/bert_cased --data conll2003 \
        --workdir runs/ner
    bertjax finetune --config configs/ner.py:conll2003 --init runs/bert_cased --data conll2003 \
        --workdir runs/ner_document --config.data.document_context=true \
        --config.data.max_seq_length=512

`--data` is the folder of `train.txt`, `valid.txt` and `test.txt` (or `eng.train`, `eng.testa`,
`eng.testb`): columns, the word first and its tag last, IOB1, IOB2 or BIOES.

Published F1, dev / test: BERT-base 96.4 / 92.4, BERT-large 96.6 / 92.8 (with document context).
"""

from ml_collections import ConfigDict

from configs import common, glue

TASKS = ("conll2003",)
RECIPES = glue.SIZES_OF_BERT


def get_config(argument: str) -> ConfigDict:
    """The recipe for a task, for a base-sized encoder unless another recipe is named.

    Raises:
      UserError: there is no such task or recipe.
    """
    task, _, recipe = argument.partition(",")
    common.check_argument(task, TASKS)
    section = {"name": "ner", "labels": (), "classifier_dropout": 0.1}
    config = glue.another_task(section, recipe)
    config.data.update(
        train_file="",
        dev_file="",
        test_file="",
        scheme="auto",  # or iob1, iob2, bioes
        document_context=False,
    )
    if not recipe:
        config.optimizer.learning_rate = 5e-5
    return config
