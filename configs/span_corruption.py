r"""Span corruption, T5's objective (Raffel et al. 2020), on the Transformer: small, base, large.

    bertjax pretrain --config configs/span_corruption.py:base --workdir runs/span_corruption \
        --config.data.corpus=corpora/c4 --config.tokenizer.path=vocab/t5/spiece.model

Recipe (section 3.1): spans of 3 tokens on average with 15% of the tokens are replaced by sentinels,
and the decoder generates the removed spans; 524,288 steps of 128 sequences of 512 tokens; a
learning rate that is constant for 10,000 steps and then decays with the square root of the step;
SentencePiece with 32,000 tokens and 100 sentinels.

    size    layers  width  heads   parameters
    small      6+6    512      8   60,573,696
    base     12+12    768     12  223,128,576
    large    24+24   1024     16  738,299,904
    tiny       2+2    128      2    1,069,568   (a demonstration, vocabulary 1,024)

Where we differ: the objective and the sizes are T5's, the model is the Transformer of
`configs/transformer.py`, with sinusoidal positions, biases and post-norm LayerNorm (T5: relative
positions, no biases, pre-norm RMSNorm). Adam (T5: Adafactor) with a warmup to a learning rate of
1e-3, which is ours.
"""

from ml_collections import ConfigDict

from configs import common

SIZES = ("tiny", "small", "base", "large")
SENTINELS = 100
_SHAPES = {
    "tiny": (2, 128, 2),
    "small": (6, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}


def get_config(size: str = "base") -> ConfigDict:
    """Returns the config of a size.

    Raises:
      UserError: Unknown size.
    """
    common.check_argument(size, SIZES)
    config = ConfigDict(common.run(num_train_steps=524_288))
    config.best_metric = "held_out/span_corruption/loss"
    config.model = common.transformer_model(size, *_SHAPES[size])
    config.tokenizer = common.tokenizer("unigram", vocab_size=32_000)
    config.tokenizer.lowercase = False
    config.data = common.data(format="full-sentences", pair="none")
    config.data.max_seq_length, config.data.batch_size = 512, 128
    config.objectives = ConfigDict({"span_corruption": _span_corruption()})
    config.optimizer = common.adamw(learning_rate=1e-3, warmup_steps=10_000)
    config.optimizer.update(schedule="inverse_square_root", weight_decay=0.0)
    config.mesh = common.mesh()
    if size == "tiny":
        config = common.shrink_to_demo(config)
    config.model.vocab_size = config.tokenizer.vocab_size + SENTINELS
    return config


def _span_corruption() -> ConfigDict:
    return ConfigDict(
        {
            "weight": 1.0,
            "num_sentinels": SENTINELS,
            "noise_density": 0.15,
            "mean_noise_span_length": 3.0,
        }
    )
