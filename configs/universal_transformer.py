r"""Universal Transformer (Dehghani et al. 2019): `configs/universal_transformer.py:SIZE`.

    bertjax pretrain --config configs/universal_transformer.py:base --workdir runs/ut \
        --config.data.corpus=corpora/wiki --config.tokenizer.path=vocab/bert-base-uncased

The encoder of the paper, trained with BERT's masked language model: one block that is applied up to
6 times (WMT; 8 to 12 in the paper's other tasks), with timestep and position embeddings, until each
token halts (ACT); the ponder cost of a step is 0.01, the default of tensor2tensor.

    size    steps  width  heads  feed-forward   parameters
    base        6   1024     16         4,096   43,851,777
    tiny        4    128      2           512      329,473   (a demonstration)

Published for translation (WMT14, base, which also has a decoder): BLEU 28.9, the Transformer 28.0.

Where we differ: the paper trains a translator; here the encoder alone is trained on masked tokens,
with Adam, warmup and a linear decay.
"""

from ml_collections import ConfigDict

from configs import common

SIZES = ("tiny", "base")
_SHAPES = {"tiny": (4, 128, 2), "base": (6, 1024, 16)}


def get_config(size: str = "base") -> ConfigDict:
    """Returns the config of a size.

    Raises:
      UserError: Unknown size.
    """
    common.check_argument(size, SIZES)
    config = ConfigDict(common.run(num_train_steps=250_000))
    config.model = _model(size)
    config.tokenizer = common.tokenizer()
    config.data = common.data(format="full-sentences", pair="none")
    config.objectives = ConfigDict({"mlm": common.mlm(), "ponder": {"weight": 0.01}})
    config.optimizer = common.adamw(learning_rate=2e-4, warmup_steps=10_000)
    config.mesh = common.mesh()
    return common.shrink_to_demo(config) if size == "tiny" else config


def _model(size: str) -> ConfigDict:
    steps, width, heads = _SHAPES[size]
    return ConfigDict(
        {
            "name": "universal_transformer",
            "size": size,
            "vocab_size": 30522,
            "hidden_size": width,
            "num_hidden_layers": steps,
            "num_attention_heads": heads,
            "intermediate_size": 4 * width,
            "hidden_act": "relu",
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
            "halting_threshold": 0.99,
            "initializer_range": 0.02,
            "layer_norm_eps": 1e-6,
            "precision": "auto",
            "unroll": 0,
        }
    )
