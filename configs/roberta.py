r"""RoBERTa (Liu et al. 2019): `configs/roberta.py:SIZE`, base or large, and tiny.

    bertjax pretrain --config configs/roberta.py:base --workdir runs/roberta \
        --config.data.corpus=corpora/openwebtext --config.tokenizer.path=vocab/roberta

BERT's encoder, trained longer on more text: cased byte-level BPE, FULL-SENTENCES of one segment
without next sentence prediction, dynamic masks (section 4). Adam with b2 = 0.98 and no clipping,
500,000 steps of 8,192 sequences of 512 tokens (table 9), in 16 microbatches: set
`--config.data.microbatches` according to the memory of the devices.

    size    layers  width  heads   parameters   MNLI  QNLI   QQP   RTE   SST  MRPC  CoLA   STS
    base        12    768     12  124,645,632   87.6  92.8  91.9  78.7  94.8  90.2  63.6  91.2
    large       24   1024     16  355,359,744   90.2  94.7  92.2  86.6  96.4  90.9  68.0  92.4
    tiny         2    128      2      610,304   (a demonstration, vocabulary 1,024)

Scores are on the dev sets, from table 5 and, for base, from the authors' release. Parameters
include the pooler, which this recipe does not train: it keeps its random initialisation until
fine-tuning. Cost of large, as published: about one day on 1,024 V100 GPUs for 100,000 steps.

Where we differ: biases and LayerNorms do not decay (released code: all parameters do).
"""

from ml_collections import ConfigDict

from configs import common

SIZES = ("tiny", "base", "large")
_RATES = {"tiny": (6e-4, 24_000), "base": (6e-4, 24_000), "large": (4e-4, 30_000)}


def get_config(size: str = "base") -> ConfigDict:
    """Returns the config of a size.

    Raises:
      UserError: Unknown size.
    """
    common.check_argument(size, SIZES)
    config = ConfigDict(common.run(num_train_steps=500_000))
    config.model = common.bert_model(size)
    config.model.update(
        vocab_size=50265,
        max_position_embeddings=514,
        position_offset=2,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
    )
    config.tokenizer = common.tokenizer("bpe", vocab_size=50265)
    config.tokenizer.lowercase = False
    config.data = common.data(format="full-sentences", pair="none")
    config.data.update(max_seq_length=512, batch_size=8192, microbatches=16)
    config.objectives = ConfigDict({"mlm": common.mlm()})
    learning_rate, warmup_steps = _RATES[size]
    config.optimizer = common.adamw(learning_rate, warmup_steps)
    config.optimizer.update(adam_b2=0.98, max_grad_norm=0.0)
    config.mesh = common.mesh()
    return common.shrink_to_demo(config) if size == "tiny" else config
