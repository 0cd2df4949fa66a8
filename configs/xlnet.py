r"""XLNet (Yang et al. 2019): `configs/xlnet.py:SIZE`, tiny, base or large.

    bertjax pretrain --config configs/xlnet.py:base --workdir runs/xlnet_base \
        --config.data.corpus=corpora/wiki_books --config.tokenizer.path=vocab/xlnet/spiece.model

Recipe (section 3.1 and appendix A.4, of large): a sixth of the tokens (K = 6) is predicted in a
random order, in spans of 1 to 5 words; sequences of 512 tokens with a memory of 384; 500,000 steps
of 8,192 sequences; Adam with a learning rate of 4e-4, warmup of 40,000 steps, linear decay, epsilon
1e-6, weight decay 0.01, dropout 0.1. SentencePiece, 32,000 tokens, cased. Base is the model of
table 6 (K = 6), trained on Wikipedia and books alone; its batch size of 2,048 and learning rate of
1e-4 are ours, as the paper does not report them.

    size    layers  width  heads   parameters   MNLI-m   SST-2   CoLA   (dev, as published)
    base        12    768     12  116,718,336    85.6     93.4
    large       24   1024     16  360,268,800    90.8     97.0   69.0
    tiny         2    128      2      560,768   (a demonstration, vocabulary 1,024)

Cost of large, as published: 5.5 days on 512 TPU v3 chips.

Where we differ: a row of the batch continues the same document from its beginning to its end, and
its two segments are always consecutive (published: half of the second segments are from other
documents, half of each sequence is reused as memory, and half of the batch is in reverse order).
[CLS] is the last token of a sequence, as published; padding follows it (published: precedes), which
does not change the outputs since positions are relative. In the released code tokens are permuted
within 256, GELU is that by tanh, and the learning rate ends at a thousandth of its peak.
"""

from ml_collections import ConfigDict

from configs import common

SIZES = ("tiny", "base", "large")
_ABSOLUTE = (
    "max_position_embeddings",
    "position_initializer",
    "position_offset",
    "type_vocab_size",
)


def get_config(size: str = "base") -> ConfigDict:
    """Returns the config of a size.

    Raises:
      UserError: Unknown size.
    """
    common.check_argument(size, SIZES)
    config = ConfigDict(common.run(num_train_steps=500_000))
    config.best_metric = "held_out/permutation_lm/loss"
    config.model = _model(size)
    config.tokenizer = common.tokenizer("unigram", vocab_size=32_000)
    config.tokenizer.lowercase = False
    config.data = common.data(format="stream-pair", pair="none")
    config.data.max_seq_length = 512
    config.data.batch_size = 8192 if size == "large" else 2048
    config.objectives = ConfigDict({"permutation_lm": _permutation_lm()})
    rate = 4e-4 if size == "large" else 1e-4
    config.optimizer = common.adamw(learning_rate=rate, warmup_steps=40_000)
    config.mesh = common.mesh()
    return common.shrink_to_demo(config) if size == "tiny" else config


def _model(size: str) -> ConfigDict:
    """The published fields, named as BERT's; relative positions need no maximum length."""
    model = common.bert_model(size)
    for absent in _ABSOLUTE:
        del model[absent]
    model.update(name="xlnet", vocab_size=32_000, mem_len=384, clamp_len=0)
    return model


def _permutation_lm() -> ConfigDict:
    return ConfigDict(
        {
            "weight": 1.0,
            "partial_prediction": 6.0,
            "max_predictions_per_seq": 0,
            "longest_span": 5,
            "whole_word": True,
        }
    )
