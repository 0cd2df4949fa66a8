r"""Fine-tuning of embeddings on text pairs: `configs/pairs.py`, `configs/pairs.py:RECIPE`.

Paper: Reimers and Gurevych 2019 (Sentence-BERT): mean pooling, a learning rate of 2e-5 with a
linear warmup over 10% of the steps, 1 epoch. Deviations: the loss for pairs without scores is that
of in-batch negatives with a temperature of 0.05 and batches of 64 pairs (Gao et al. 2021,
supervised SimCSE has 512), for scored pairs CoSENT; 4 epochs for scored pairs in that paper, here
--config.num_train_epochs.
`simcse` is unsupervised SimCSE (Gao et al. 2021, section 6.1 and appendix A): one column of texts,
each its own positive with other dropout, pooling of [CLS], 32 tokens, a learning rate of 3e-5 and
batches of 64, without warmup. Deviations: no MLP on [CLS] in training; dev is evaluated once.
`small` and `tiny` are those of `configs/glue.py`.

    bertjax finetune --config configs/pairs.py --data pairs.jsonl --text query --text_pair answer \
        --init runs/bert --workdir runs/pairs
    bertjax finetune --config configs/pairs.py:small --data stsb/ --init runs/mini \
        --workdir runs/stsb --config.num_train_epochs=4
    bertjax finetune --config configs/pairs.py:simcse --data sentences/ --init runs/bert \
        --workdir runs/simcse
"""

from ml_collections import ConfigDict

from configs import common, glue

RECIPES = (*glue.SIZES_OF_BERT[1:], "simcse")


def get_config(argument: str = "") -> ConfigDict:
    """Returns the config, with the recipe for base-sized encoders by default.

    Raises:
      UserError: Unknown recipe.
    """
    common.check_argument(argument, ("", *RECIPES))
    config = glue.another_task({"name": "pairs"}, "" if argument == "simcse" else argument)
    config.choose_epoch = "best"
    config.early_stopping_patience = 0  # epochs without a better dev score; 0 trains all epochs
    config.keep_checkpoints = True  # the encoder is the result
    config.task.loss_type = ""  # contrastive, cosent, cosine, margin_mse, kl; "": by columns
    config.task.pooling = "mean"  # weighted (by position), cls
    config.task.temperature = 0.05
    config.task.query_prompt = ""  # put before anchors, such as "query: "
    config.task.document_prompt = ""  # put before positives and negatives
    config.task.symmetric = False  # the anchor among all anchors, too
    config.task.matryoshka_dims = ()  # widths, besides the full one
    config.data.text = ""  # columns: --text, --text_pair, --label; "" for common names
    config.data.text_pair = ""
    config.data.negative = ""
    config.data.label = ""
    config.data.validation_fraction = None  # becomes dev, if there is no dev file; None: 0.1
    config.data.split_seed = None  # of the choice of these rows; None: 0
    if argument != "tiny":
        config.data.batch_size = 64  # pairs
    if argument in ("", "simcse"):
        config.num_train_epochs = 1
    if argument == "simcse":
        config.task.pooling = "cls"
        config.data.update(max_seq_length=32, padded_lengths=(16, 32))
        config.optimizer.update(learning_rate=3e-5, warmup_share=0.0)
    return config
