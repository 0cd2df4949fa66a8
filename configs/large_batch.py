r"""BERT on batches of 2,048 to 65,536 sequences: `configs/large_batch.py:RECIPE`.

    bertjax pretrain --config configs/large_batch.py:lamb_64k --workdir runs/lamb_64k \
        --config.data.corpus=corpora/wiki_books --config.tokenizer.path=vocab/bert-base-uncased
    bertjax plan --config configs/large_batch.py:lamb_64k --topology v5e-256

`adamw` is RoBERTa's study on BERT-base's text (Liu et al. 2019, section 4.3 and table 3): its base
model, without next sentence prediction; the warmup of 6% of the steps is ours. `lamb` is BERT-large
after You et al. 2020 (section 4 and its tables): 9 of 10 steps on 128 tokens, the rest on 512; the
learning rate scales with the square root of the batch size, the warmup linearly. `lamb_64k` has a
second phase with 32,768 sequences and a separate warmup; learning rates, warmups and the square
root decay are those of NVIDIA's release of the two phases. The published decay of `lamb` begins
with the warmup: `learning_rate` is what it has left of the table's rate at the end of the warmup,
5.08e-3 and 3.74e-3 for `lamb_64k`, so that all later steps have the published rate.

    recipe     batch          steps           learning rate  warmup        published
    adamw_2k   2,048          125,000         7e-4           7,500         SST-2 92.9, MNLI-m 85.2
    adamw_8k   8,192          31,000          1e-3           1,860         SST-2 92.8, MNLI-m 84.6
    lamb_2k    2,048          250,000         1.25e-3        3,125         SQuAD 1.1 F1 91.946
    lamb_8k    8,192          62,500          2.5e-3         3,125         SQuAD 1.1 F1 91.263
    lamb_32k   32,768         15,625          5e-3           3,125         SQuAD 1.1 F1 91.475
    lamb_64k   65,536/32,768  7,038 + 1,563   6e-3, 4e-3     2,001, 200

You et al. report SQuAD 1.1 F1 90.584 for batches of 64K and 32K with another schedule, of 8,599
steps.

The number of microbatches suits 256 chips of 16 GB; use `bertjax plan` for other machines.
Parameters: 124,645,632 (adamw), 335,141,888 (lamb). Cost, as published: 76 minutes on 1,024
TPUv3 chips for batches of 64K and 32K sequences.
"""

from ml_collections import ConfigDict

from configs import bert, common, roberta

_ADAMW = {
    # Batch size, steps, learning rate, microbatches.
    "adamw_2k": (2048, 125_000, 7e-4, 1),
    "adamw_8k": (8192, 31_000, 1e-3, 4),
}
_LAMB = {
    "lamb_2k": (2048, 250_000, 1.25e-3, 1),
    "lamb_8k": (8192, 62_500, 2.5e-3, 4),
    "lamb_32k": (32_768, 15_625, 5e-3, 16),
}
_LAMB_WARMUP = 3125
RECIPES = (*_ADAMW, *_LAMB, "lamb_64k")


def get_config(recipe: str) -> ConfigDict:
    """Returns the config of a recipe.

    Raises:
      UserError: Unknown recipe.
    """
    common.check_argument(recipe, RECIPES)
    if recipe in _ADAMW:
        return _adamw(*_ADAMW[recipe])
    config = bert.get_config("large")
    config.model.remat = "dots_with_no_batch_dims"
    config.optimizer.name = "lamb"
    if recipe == "lamb_64k":
        return _two_phases(config)
    batch_size, steps, rate, microbatches = _LAMB[recipe]
    short = steps * 9 // 10
    config.num_train_steps = steps
    config.data.phases = ((short, 128, batch_size), (steps - short, 512, batch_size))
    config.data.microbatches = microbatches
    rate = _after_warmup(rate, _LAMB_WARMUP, steps)
    config.optimizer.update(learning_rate=rate, warmup_steps=_LAMB_WARMUP)
    return config


def _adamw(batch_size: int, steps: int, rate: float, microbatches: int) -> ConfigDict:
    config = roberta.get_config("base")
    config.num_train_steps = steps
    config.data.update(batch_size=batch_size, microbatches=microbatches)
    config.optimizer.update(learning_rate=rate, warmup_steps=round(0.06 * steps))
    return config


def _two_phases(config: ConfigDict) -> ConfigDict:
    config.num_train_steps = 7038 + 1563
    config.data.phases = ((7038, 128, 65_536), (1563, 512, 32_768))
    config.data.microbatches = 16
    first, second = _after_warmup(6e-3, 2001, 7038, 0.5), _after_warmup(4e-3, 200, 1563, 0.5)
    config.optimizer.update(learning_rate=first, warmup_steps=2001, restarts=((second, 200),))
    config.optimizer.update(schedule="polynomial", power=0.5)
    return config


def _after_warmup(rate: float, warmup: int, steps: int, power: float = 1.0) -> float:
    """What a decay over all steps has left of a learning rate after the warmup."""
    return rate * (1 - warmup / steps) ** power
