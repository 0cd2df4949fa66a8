r"""Transformer (Vaswani et al. 2017): `configs/transformer.py:SIZE`, base or big, and tiny.

    bertjax pretrain --config configs/transformer.py:base --workdir runs/transformer \
        --config.data.input=pairs/train.tsv --config.data.validation_input=pairs/dev.tsv
    bertjax generate --model runs/transformer --input sources.txt

An encoder-decoder of 6 + 6 layers for sources and targets in TSV or JSON lines (`bertjax prepare
--help`), with shared embeddings of source, target and output, and BPE with 37,000 tokens. Recipe
(sections 5 and 6): Adam with b2 = 0.98 and epsilon 1e-9, a learning rate with a linear warmup of
4,000 steps to (width * 4,000) ** -0.5 and an inverse square root decay; label smoothing 0.1;
100,000 steps for base, 300,000 for big; decoding with a beam of 4 and a length penalty of 0.6.

    size    layers  width  heads   parameters   BLEU, English to German, newstest2014
    base       6+6    512      8   63,082,496   27.3
    big        6+6   1024     16  214,245,376   28.4
    tiny       2+2    128      2    1,056,768   (for tests, vocabulary 1,024)

The paper counts 65 and 213 million. Cost, as published: 12 hours for base and 3.5 days for big on 8
P100 GPUs.

Where we differ: batches have a fixed number of pairs of up to 128 tokens (published: about 25,000
source tokens and 25,000 target tokens). Checkpoints are not averaged.
"""

from ml_collections import ConfigDict

from configs import common

SIZES = ("tiny", "base", "big")
_SHAPES = {"tiny": (2, 128, 2), "base": (6, 512, 8), "big": (6, 1024, 16)}
_DROPOUT = {"tiny": 0.1, "base": 0.1, "big": 0.3}


def get_config(size: str = "base") -> ConfigDict:
    """Returns the config of a size.

    Raises:
      UserError: Unknown size.
    """
    common.check_argument(size, SIZES)
    layers, width, heads = _SHAPES[size]
    config = ConfigDict(common.run(num_train_steps=300_000 if size == "big" else 100_000))
    config.best_metric = "held_out/seq2seq/loss"
    config.model = common.transformer_model(size, layers, width, heads)
    config.model.vocab_size = 37_000
    config.model.hidden_dropout_prob = _DROPOUT[size]
    config.tokenizer = common.tokenizer("sentencepiece_bpe", vocab_size=37_000)
    config.tokenizer.lowercase = False
    config.data = common.data(format="source-target", pair="none")
    config.data.text_format = "source-target"
    config.objectives = ConfigDict({"seq2seq": {"weight": 1.0, "label_smoothing": 0.1}})
    config.optimizer = common.adamw(learning_rate=(width * 4_000) ** -0.5, warmup_steps=4_000)
    config.optimizer.update(
        schedule="inverse_square_root",
        adam_b2=0.98,
        adam_eps=1e-9,
        weight_decay=0.0,
        max_grad_norm=0.0,
    )
    config.mesh = common.mesh()
    if size == "tiny":
        common.shrink_to_demo(config).data.input = ()
    return config
