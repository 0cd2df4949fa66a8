r"""SpanBERT (Joshi et al. 2020): `configs/spanbert.py:SIZE`, base or large, and tiny.

    bertjax pretrain --config configs/spanbert.py:base --workdir runs/spanbert \
        --config.data.corpus=corpora/wiki_books --config.tokenizer.path=vocab/bert-base-cased

BERT's encoder on single segments of one document, without next sentence prediction (section 3.3).
Masks are spans of up to 10 whole words, 3.8 on average, with 15% of the tokens in total; a whole
span is replaced by [MASK] (80%), by random tokens (10%) or unchanged (10%). The span boundary
objective also predicts its tokens from the two neighbours of the span (3.1, 3.2). Adam, 2,400,000
steps of 256 sequences of 512 tokens, weight decay 0.1, epsilon 1e-8 (4.2).

    size    layers  width  heads   parameters   SQuAD 1.1 / 2.0 F1   GLUE (test)
    base        12    768     12  108,310,272   92.4 / 83.6
    large       24   1024     16  333,579,264   94.6 / 88.7          82.8
    tiny         2    128      2      610,176   (a demonstration, vocabulary 1,024)

Scores of large are from the paper (tables 1 and 6), those of base from the authors' release.
Parameters include the pooler, which this recipe does not train. Cost of large, as published: 15
days on 32 V100 GPUs.

Where we differ: biases and LayerNorms do not decay (released code: all parameters do). The command
of the authors' release has a weight decay of 0.01.
"""

from ml_collections import ConfigDict

from configs import common

SIZES = ("tiny", "base", "large")


def get_config(size: str = "base") -> ConfigDict:
    """Returns the config of a size.

    Raises:
      UserError: Unknown size.
    """
    common.check_argument(size, SIZES)
    config = ConfigDict(common.run(num_train_steps=2_400_000))
    config.model = common.bert_model(size)
    config.model.vocab_size = 28996
    config.tokenizer = common.tokenizer(vocab_size=28996)
    config.tokenizer.lowercase = False
    config.data = common.data(format="doc-sentences", pair="none")
    config.data.max_seq_length = 512
    config.objectives = ConfigDict({"mlm": common.mlm(), "sbo": _span_boundary()})
    config.objectives.mlm.masking = "span"
    config.optimizer = common.adamw(learning_rate=1e-4, warmup_steps=10_000)
    config.optimizer.update(weight_decay=0.1, adam_eps=1e-8)
    config.mesh = common.mesh()
    return common.shrink_to_demo(config) if size == "tiny" else config


def _span_boundary() -> ConfigDict:
    return ConfigDict({"weight": 1.0, "num_positions": 200, "position_embedding_size": 200})
