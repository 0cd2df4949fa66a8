r"""MosaicBERT (Portes et al. 2023): `configs/mosaicbert.py:SIZE`, base and tiny.

    bertjax pretrain --config configs/mosaicbert.py:base --workdir runs/mosaicbert \
        --config.data.corpus=corpora/c4

BERT with ALiBi in place of position embeddings and GeGLU in the feed-forward nets; 30% of the
tokens masked, no sentence pairs, no dropout of the attention weights, a vocabulary that is a
multiple of 64 (section 3). With ALiBi sequences may be longer in fine-tuning than in pretraining.

    size    layers  width  heads      F    parameters   with the head
    base        12    768     12  3,072   136,777,728     137,400,384
    tiny         2    128      2    512       658,176     (a demonstration)

Published: 137 million parameters; 79.6 on the dev sets of GLUE after 1.13 hours on eight A100.

From the released code (mosaicml/examples, benchmarks/bert) and model card: 70,000 steps of 4,096
sequences of 128 tokens of C4; decoupled AdamW with betas of 0.9 and 0.98 and epsilon 1e-6, a peak
learning rate of 5e-4, 6% of the steps in the warmup, then a linear decay to 2% of the peak; dropout
of 0.1 elsewhere. A step of its optimizer removes 1e-5 of a parameter at the peak of the learning
rate, which is a weight decay of 1e-5 / 5e-4 = 0.02 in ours.

Where we differ: whole documents are packed into rows and do not attend to each other (published:
the first 128 tokens of each, without the padding); biases and LayerNorms do not decay; held-out
text is masked as in training (published: 15%). The tokenizer has 30,528 tokens itself (published:
30,522 of BERT and six unused rows): with BERT's, set `--config.model.vocab_size=30522`.
"""

from ml_collections import ConfigDict

from configs import common

_SHAPES = {
    # Layers, width, heads.
    "tiny": (2, 128, 2),
    "base": (12, 768, 12),
}
SIZES = tuple(_SHAPES)
_STEPS, _RATE = 70_000, 5e-4


def get_config(size: str = "base") -> ConfigDict:
    """Returns the config of a size.

    Raises:
      UserError: Unknown size.
    """
    common.check_argument(size, SIZES)
    config = ConfigDict(common.run(num_train_steps=_STEPS))
    config.model = _model(size)
    config.tokenizer = common.tokenizer(vocab_size=config.model.vocab_size)
    config.data = common.data(format="packed-documents", pair="none")
    config.data.update(max_seq_length=128, batch_size=4096, microbatches=8)
    config.objectives = ConfigDict({"mlm": common.mlm()})
    config.objectives.mlm.masked_lm_prob = 0.3
    config.optimizer = common.adamw(_RATE, warmup_steps=_STEPS * 6 // 100)
    config.optimizer.update(adam_b2=0.98, weight_decay=0.02, max_grad_norm=0.0)
    config.optimizer.end_learning_rate = 0.02 * _RATE
    config.mesh = common.mesh()
    return _tiny(config) if size == "tiny" else config


def _model(size: str) -> ConfigDict:
    layers, width, heads = _SHAPES[size]
    return ConfigDict(
        {
            "name": "mosaicbert",
            "size": size,
            "vocab_size": 30528,
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": 4 * width,
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.0,
            "type_vocab_size": 2,
            "initializer_range": 0.02,
            "layer_norm_eps": 1e-12,
            "precision": "auto",
            "remat": "none",
            "unroll": 0,
        }
    )


def _tiny(config: ConfigDict) -> ConfigDict:
    config = common.shrink_to_demo(config)
    config.data.microbatches = 1
    return config
