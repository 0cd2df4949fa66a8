r"""ELMo (Peters et al. 2018): `configs/elmo.py:SIZE`, tiny, small, medium or original.

    bertjax pretrain --config configs/elmo.py:original --workdir runs/elmo \
        --config.data.corpus=corpora/one_billion_words --config.tokenizer.path=vocab/elmo

Recipe (section 3.4 and bilm-tf): a character CNN over each word; two LSTM layers per direction, the
second with a residual connection; each word is predicted from the left and from the right with one
softmax; rows continue with the states of the previous step; dropout 0.1, values of LSTMs clipped at
3; 10 epochs of the 1 Billion Word Benchmark (769 million words, 1,000,000 steps) in batches of
3 x 128 rows of 20 words, Adagrad with a learning rate of 0.2.

    size      LSTM   width   parameters   as published
    original  4,096   1,024   93,600,848  forward and backward perplexity 39.7; SQuAD F1 85.8
    medium    2,048     512   28,027,728
    small     1,024     256   13,593,296
    tiny        256     128      696,272  (a demonstration, words of 18 characters)

The parameter counts are those of the encoder; the softmax has 793,471 x `hidden_size` / 2 more.

Cost, as published: about two weeks on 3 GTX 1080 Ti. The exact softmax over 793,471 words is most
of the cost here: 30 TFLOPs for 2,560 words.

Where we differ: the softmax is exact (published: over 8,192 sampled words); the optimizer is AdamW;
begin and end tokens, which are inputs but not targets, enclose each segment of a document
(published: each sentence); words outside the tokenizer's vocabulary are one unknown word in the
input, so make the vocabulary larger than `softmax_size`: words between the two sizes are embedded
from their characters and predicted as unknown.
"""

from ml_collections import ConfigDict

from configs import common

SIZES = ("tiny", "small", "medium", "original")
_LSTM = {
    # LSTM cell size, output of both directions, CNN filters (width, number), as released.
    "original": (4096, 1024, (32, 32, 64, 128, 256, 512, 1024)),
    "medium": (2048, 512, (32, 32, 64, 128, 256, 512, 1024)),
    "small": (1024, 256, (32, 32, 64, 128, 256, 512, 1024)),
    "tiny": (256, 128, (16, 16, 32, 64, 64)),
}


def get_config(size: str = "original") -> ConfigDict:
    """Returns the config of a size.

    Raises:
      UserError: Unknown size.
    """
    common.check_argument(size, SIZES)
    config = ConfigDict(common.run(num_train_steps=1_000_000))
    config.best_metric = "held_out/bidirectional_lm/loss"
    config.model = _model(size)
    config.tokenizer = common.tokenizer("words", vocab_size=793_471)
    config.tokenizer.lowercase = False
    config.data = common.data(format="stream", pair="none")
    config.data.max_seq_length, config.data.batch_size = 22, 384
    config.objectives = ConfigDict({"bidirectional_lm": _bidirectional_lm()})
    config.optimizer = common.adamw(learning_rate=1e-3, warmup_steps=1_000)
    config.mesh = common.mesh()
    return _shrink_to_demo(config) if size == "tiny" else config


def _shrink_to_demo(config: ConfigDict) -> ConfigDict:
    config = common.shrink_to_demo(config)
    config.optimizer.learning_rate = 3e-3
    # The vocabulary of the input is four times that of the softmax.
    config.model.vocab_size = config.tokenizer.vocab_size = 4096
    config.objectives.bidirectional_lm.softmax_size = 1024
    return config


def _model(size: str) -> ConfigDict:
    cells, width, filters = _LSTM[size]
    return ConfigDict(
        {
            "name": "elmo",
            "size": size,
            "vocab_size": 793_471,
            "hidden_size": width,
            "num_hidden_layers": 2,
            "intermediate_size": cells,
            "filters": tuple(enumerate(filters, start=1)),
            "char_embedding_size": 16,
            "num_highway_layers": 2 if size == "original" else 1,
            "max_chars_per_word": 20 if size == "tiny" else 50,
            "hidden_act": "relu",
            "hidden_dropout_prob": 0.1,
            "cell_clip": 3.0,
            "proj_clip": 3.0,
            "without_skip_connections": False,
            "initializer_range": 0.02,
            "precision": "auto",
            "unroll": 0,
        }
    )


def _bidirectional_lm() -> ConfigDict:
    return ConfigDict({"weight": 1.0, "softmax_size": 0, "positions_at_a_time": 8})
