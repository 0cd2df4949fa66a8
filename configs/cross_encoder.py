r"""Fine-tuning of a cross-encoder for reranking: `configs/cross_encoder.py`, `:RECIPE`.

Paper: Nogueira and Cho 2019 (monoBERT), section 3.2: query and passage as one sequence, pointwise
cross entropy, Adam with a learning rate of 3e-6, a weight decay of 0.01, sequences of 512 tokens,
of which the query has at most 64, batches of 128, a warmup of 10,000 of 100,000 steps. Deviations:
the learning rate is BERT's 2e-5, the length 256, batches have 32 examples (a positive with its hard
negatives, or a scored pair), 1 epoch, and of a pair that is too long the longer text is truncated.
`small` and `tiny` are those of `configs/glue.py`.

    bertjax finetune --config configs/cross_encoder.py --data triples.jsonl --init runs/bert \
        --workdir runs/cross_encoder
    bertjax evaluate retrieval --model bm25 --reranker runs/cross_encoder --data beir/scifact
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
    section = {"name": "cross_encoder", "classifier_dropout": 0.1, "pooler_act": "tanh"}
    config = glue.another_task(section, argument)
    config.choose_epoch = "best"
    config.early_stopping_patience = 0  # epochs without a better dev score; 0 trains all epochs
    config.keep_checkpoints = True  # the model is the result
    config.task.loss_type = "bce"  # or softmax, over a positive and its hard negatives
    config.data.text = ""  # columns: --text, --text_pair, --label; "" for common names
    config.data.text_pair = ""
    config.data.negative = ""
    config.data.label = ""
    config.data.validation_fraction = None  # becomes dev, if there is no dev file; None: 0.1
    config.data.split_seed = None  # of the choice of these rows; None: 0
    if argument != "tiny":
        config.data.update(max_seq_length=256, padded_lengths=(32, 64, 96, 128, 192, 256))
    if not argument:
        config.num_train_epochs = 1
    return config
