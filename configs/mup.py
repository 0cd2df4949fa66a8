r"""BERT in the maximal update parametrisation (muP): `configs/mup.py:WIDTH`, from 128 to 1024.

    bertjax pretrain --config configs/mup.py:128 --workdir runs/mup_128 \
        --config.data.corpus=corpora/wiki_books --config.optimizer.learning_rate=4e-3

A learning rate that is best at width 128 is best for the wider models too (Yang et al. 2022): tune
it there, where a step costs least, and train the others with it. At width 128 the model and its
training are those of the standard parametrisation.

    width  heads   parameters
      128      2    4,765,952
      256      4   11,104,768
      512      8   28,500,992
     1024     16   82,167,808

The model is BERT-mini (`configs/bert.py:mini`) in other widths: 4 layers, heads of 64, four times
the width in the feed-forward nets. `--config.model.num_hidden_layers`, the batch
size and the number of steps are part of what was tuned: change them for the base model, too.

The recipe is ours: MLM on full sentences of 128 tokens, 100,000 steps of 256 sequences; AdamW with
an epsilon of 1e-12, since gradients are smaller in wider models; otherwise BERT's.
"""

from ml_collections import ConfigDict

from configs import bert, common

BASE_WIDTH = 128
SIZES = ("128", "256", "512", "1024")
_HEAD_WIDTH = 64


def get_config(width: str = "128") -> ConfigDict:
    """Returns the config of a width.

    Raises:
      UserError: Unknown width.
    """
    common.check_argument(width, SIZES)
    config = bert.get_config("mini")
    config.update(common.run(num_train_steps=100_000))
    config.model.update(
        size=width,
        hidden_size=int(width),
        num_attention_heads=int(width) // _HEAD_WIDTH,
        intermediate_size=4 * int(width),
        num_pooler_layers=0,
    )
    with config.unlocked():
        config.model.mup_base_width = BASE_WIDTH
    config.data = common.data(format="full-sentences", pair="none")
    config.objectives = ConfigDict({"mlm": common.mlm()})
    config.optimizer = common.adamw(learning_rate=1e-3, warmup_steps=1_000)
    config.optimizer.adam_eps = 1e-12
    return config
