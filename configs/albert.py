r"""ALBERT v1 (Lan et al. 2020): `configs/albert.py:SIZE`, base to xxlarge, and tiny.

    bertjax pretrain --config configs/albert.py:base --workdir runs/albert \
        --config.data.corpus=corpora/wiki_books --config.tokenizer.path=vocab/albert

Embeddings of width 128, layers that share all parameters (section 3.1; `--config.model.sharing` can
also be attention, feed_forward or none), sentence order in place of next sentence prediction, and
masks of 1 to 3 words (4.1). SentencePiece, 30,000 tokens, lowercased. LAMB with a learning rate of
0.00176, 125,000 steps of 4,096 sequences of up to 512 tokens, a tenth of them shorter.

    size     layers  width  heads   parameters   SQuAD 1.1 / 2.0 F1  MNLI  SST-2  RACE  average
    base         12    768     12   11,683,584   89.3 / 80.0         81.6   90.3  64.0     80.1
    large        24   1024     16   17,683,968   90.6 / 82.3         83.5   91.7  68.5     82.4
    xlarge       24   2048     16   58,724,864   92.5 / 86.1         86.4   92.4  74.8     85.5
    xxlarge      12   4096     64  222,595,584   94.1 / 88.1         88.0   95.2  82.3     88.7
    tiny          2    128      2      268,288   (a demonstration, vocabulary 1,024)

Scores are on dev sets, from table 2. Cost, as published: 64 to 512 Cloud TPU v3; BERT-large
processes 3.17 times as much text per second as xxlarge.

Where we differ: masks are new in every step (released code: made in advance).
"""

from ml_collections import ConfigDict

from configs import common

SHAPES = {
    # Layers, width, heads, as released.
    "tiny": (2, 128, 2),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
    "xlarge": (24, 2048, 16),
    "xxlarge": (12, 4096, 64),
}
SIZES = tuple(SHAPES)


def get_config(size: str = "base") -> ConfigDict:
    """Returns the config of a size.

    Raises:
      UserError: Unknown size.
    """
    common.check_argument(size, SIZES)
    config = ConfigDict(common.run(num_train_steps=125_000))
    config.model = _model(size)
    config.tokenizer = common.tokenizer("unigram", vocab_size=30000)
    config.data = common.data(pair="order")
    config.data.update(max_seq_length=512, batch_size=4096)
    config.objectives = ConfigDict({"mlm": common.mlm(), "sentence_pair": common.sentence_pair()})
    config.objectives.mlm.masking = "ngram"
    config.optimizer = common.adamw(learning_rate=0.00176, warmup_steps=3125)
    config.optimizer.name = "lamb"
    config.mesh = common.mesh()
    return common.shrink_to_demo(config) if size == "tiny" else config


def _model(size: str) -> ConfigDict:
    """The published fields of `albert_config.json`."""
    layers, width, heads = SHAPES[size]
    dropout = 0.0 if size == "xxlarge" else 0.1
    return ConfigDict(
        {
            "name": "albert",
            "size": size,
            "vocab_size": 30000,
            "embedding_size": 32 if size == "tiny" else 128,
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": 4 * width,
            "hidden_act": "gelu_new",
            "hidden_dropout_prob": dropout,
            "attention_probs_dropout_prob": dropout,
            "max_position_embeddings": 512,
            "type_vocab_size": 2,
            "initializer_range": 0.02,
            "position_initializer": "normal",
            "layer_norm_eps": 1e-12,
            "sharing": "all",
            "num_hidden_groups": 0,
            "inner_group_num": 0,
            "precision": "auto",
            "remat": "none",
            "unroll": 0,
        }
    )
