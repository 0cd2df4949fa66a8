r"""Fine-tuning for late interaction (ColBERT): `configs/colbert.py`, `:RECIPE`.

Paper: Khattab and Zaharia 2020, section 4.1: vectors of 128 numbers, 32 tokens of a query, which
[MASK] fills up, 180 of a document (the released code), a learning rate of 3e-6 and batches of 32
triples. Deviations: the learning rate is BERT's 2e-5, with a warmup; a positive is compared with
all documents of the batch (Santhanam et al. 2022, ColBERTv2) and not with one negative only; 1
epoch.
`small` and `tiny` are those of `configs/glue.py`.

    bertjax finetune --config configs/colbert.py --data triples.jsonl --init runs/bert \
        --workdir runs/colbert
    bertjax evaluate retrieval --model runs/colbert --data beir/scifact
"""

from ml_collections import ConfigDict

from configs import common, glue

RECIPES = glue.SIZES_OF_BERT[1:]


def get_config(argument: str = "") -> ConfigDict:
    """Returns the config, with the recipe for base-sized encoders by default.

    Raises:
      UserError: Unknown recipe.
    """
    common.check_argument(argument, ("", *RECIPES))
    config = glue.another_task({"name": "colbert"}, argument)
    config.choose_epoch = "best"
    config.early_stopping_patience = 0  # epochs without a better dev score; 0 trains all epochs
    config.keep_checkpoints = True  # the model is the result
    config.task.embedding_dim = 128
    config.task.query_length = 32
    config.task.temperature = 1.0
    config.data.text = ""  # columns: --text, --text_pair, --label; "" for common names
    config.data.text_pair = ""
    config.data.negative = ""
    config.data.label = ""
    config.data.validation_fraction = None  # becomes dev, if there is no dev file; None: 0.1
    config.data.split_seed = None  # of the choice of these rows; None: 0
    if argument == "tiny":
        config.task.query_length = 16
    else:
        config.data.update(max_seq_length=180, padded_lengths=(32, 64, 96, 128, 180))
    if not argument:
        config.num_train_epochs = 1
    return config
