r"""NeoBERT (Le Breton et al. 2025): `configs/neobert.py:SIZE`, base and tiny.

    bertjax pretrain --config configs/neobert.py:base --workdir runs/neobert \
        --config.data.corpus=corpora/web

28 layers of the width of BERT-base with RMSNorm before attention and feed-forward net, SwiGLU,
rotary positions and no biases (section 3). 20% of the tokens are masked. 2.1 trillion tokens in
sequences of 1,024, then 0.1 trillion in sequences of 4,096.

    size    layers  width  heads      F    parameters   with the output layer
    base        28    768     12  2,048   221,665,536             245,136,954
    tiny         2    128      2    344       526,976   (a demonstration)

Published: 250 million parameters, which include the output layer, an untied matrix.

From the released code (chandar-lab/NeoBERT): all masked tokens become [MASK]; AdamW with betas of
0.9 and 0.95, clipping at 1; 1,000,000 steps of 2,048 sequences, then 50,000 of 512; a warmup of
2,000 steps, a cosine decay to a tenth of the learning rate at step 900,000, constant after it.
Its configs have a learning rate of 1e-4 and a weight decay of 0.01. Not verified: 6e-4 and 0.1,
which public reproductions give for the paper and which are used here.

Where we differ: whole documents are packed into rows and do not attend to each other (published:
padded sequences); the long sequences are of the same corpus (published: of its documents of more
than 1,024 tokens, and a part of the others), unless `--config.data.mixture` has other shares for
the third phase, whose learning rate is ours; norms do not decay; the initialisation is a truncated
normal distribution of equal variance (published: uniform).
"""

from ml_collections import ConfigDict

from configs import common

_SHAPES = {
    # Layers, width, heads, intermediate size.
    "tiny": (2, 128, 2, 344),
    "base": (28, 768, 12, 2048),
}
SIZES = tuple(_SHAPES)
_RATE, _LAST_RATE = 6e-4, 6e-5
_PHASES = ((900_000, 1024, 2048), (100_000, 1024, 2048), (50_000, 4096, 512))


def get_config(size: str = "base") -> ConfigDict:
    """Returns the config of a size.

    Raises:
      UserError: Unknown size.
    """
    common.check_argument(size, SIZES)
    config = ConfigDict(common.run(num_train_steps=sum(steps for steps, *_ in _PHASES)))
    config.model = _model(size)
    config.tokenizer = common.tokenizer()
    config.data = common.data(format="packed-documents", pair="none")
    config.data.update(microbatches=16, phases=_PHASES)
    config.objectives = ConfigDict({"mlm": common.mlm()})
    config.objectives.mlm.update(masked_lm_prob=0.2, mask_share=1.0, random_share=0.0)
    config.optimizer = common.adamw(_RATE, warmup_steps=2000)
    config.optimizer.update(schedule="cosine", end_learning_rate=_LAST_RATE, weight_decay=0.1)
    config.optimizer.update(adam_b2=0.95, adam_eps=1e-8)
    # A cosine from a learning rate to the same one is constant.
    config.optimizer.restarts = ((_LAST_RATE, 0), (_LAST_RATE, 0))
    config.mesh = common.mesh()
    return _tiny(config) if size == "tiny" else config


def _model(size: str) -> ConfigDict:
    layers, width, heads, intermediate = _SHAPES[size]
    return ConfigDict(
        {
            "name": "neobert",
            "size": size,
            "vocab_size": 30522,
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": intermediate,
            "hidden_act": "silu",
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "max_position_embeddings": 4096,
            "rope_theta": 10_000.0,
            "initializer_range": 0.013,
            "layer_norm_eps": 1e-5,
            "precision": "auto",
            "remat": "none",
            "unroll": 0,
        }
    )


def _tiny(config: ConfigDict) -> ConfigDict:
    config = common.shrink_to_demo(config)
    config.data.microbatches, config.optimizer.restarts = 1, ()
    config.optimizer.end_learning_rate = config.optimizer.learning_rate / 10
    return config
