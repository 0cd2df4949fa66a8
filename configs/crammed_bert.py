r"""CrammedBERT (Geiping & Goldstein 2023): `configs/crammed_bert.py:SIZE`, base and tiny.

    bertjax pretrain --config configs/crammed_bert.py:base --workdir runs/crammed_bert \
        --config.data.corpus=corpora/pile

BERT for one day on one GPU: pre-norm blocks, GeGLU, no biases of linear maps, scaled sinusoidal
positions, no transform in the head, no dropout in pretraining; sequences of 128 tokens, of which
25% are masked (section 4). Batches grow, and the learning rate rises for three quarters of the run
and then falls to zero. To follow the clock as in the paper, `--config.budget_seconds=86400
--config.data.phases='()' --config.data.batch_size=4096` ends after a day, with batches of one size.

    size    layers  width  heads      F    parameters
    base        16    768     12  1,536   119,589,889
    tiny         2    128      2    256       460,289   (a demonstration)

From the released code (JonasGeiping/cramming, `arch=crammed-bert train=bert-o4`): a vocabulary of
32,768; AdamW with betas of 0.9 and 0.98, epsilon 1e-12 and weight decay 0.01, clipping at 0.5, a
peak learning rate of 1e-3; batches that grow to 8,192 sequences over 60% of the run, in parts of
128 for accumulation. Its fine-tuning has a dropout of 0.1, of hidden states and attention weights.

Where we differ: the length of the run is that of the slice of C4 which the released code prepares
for a day, 85 million sequences; batches grow in eight stages (published: continuously); the
learning rate begins at zero and rises with the steps (published: at a quarter of the peak, with the
time); documents are packed into rows with a [CLS] each and do not attend to each other (published:
all text is cut every 128 tokens, with [SEP] between documents and without [CLS]), and are in random
order (published: C4 by the length of its sentences); a sentence classifier reads [CLS] (published:
the mean of all tokens).
"""

from ml_collections import ConfigDict

from configs import common

_SHAPES = {
    # Layers, width, heads, intermediate size.
    "tiny": (2, 128, 2, 256),
    "base": (16, 768, 12, 1536),
}
SIZES = tuple(_SHAPES)
_LENGTH, _BATCH, _MICROBATCH = 128, 8192, 128
_SEQUENCES = 85e6
_GROWTH, _RISE = 0.6, 0.75  # shares of the sequences
_STAGES = range(_BATCH // 16, _BATCH, _BATCH // 8)


def get_config(size: str = "base") -> ConfigDict:
    """Returns the config of a size.

    Raises:
      UserError: Unknown size.
    """
    common.check_argument(size, SIZES)
    tokens = _GROWTH * _SEQUENCES * _LENGTH
    growing = common.batch_size_warmup(10**6, _LENGTH, (*_STAGES, _BATCH), tokens, "tokens")[:-1]
    growing_steps = sum(steps for steps, *_ in growing)
    last = round((1 - _GROWTH) * _SEQUENCES / _BATCH)
    config = ConfigDict(common.run(num_train_steps=growing_steps + last))
    config.model = _model(size)
    config.tokenizer = common.tokenizer(vocab_size=config.model.vocab_size)
    config.data = common.data(format="packed-documents", pair="none")
    config.data.update(max_seq_length=_LENGTH, batch_size=_BATCH)
    config.data.microbatches = _BATCH // _MICROBATCH
    config.data.phases = tuple(
        (*phase, phase[-1] // _MICROBATCH) for phase in (*growing, (last, _LENGTH, _BATCH))
    )
    config.objectives = ConfigDict({"mlm": common.mlm()})
    config.objectives.mlm.masked_lm_prob = 0.25
    rise = round((_RISE - _GROWTH) * _SEQUENCES / _BATCH)
    config.optimizer = common.adamw(1e-3, warmup_steps=growing_steps + rise)
    config.optimizer.update(adam_b2=0.98, adam_eps=1e-12, max_grad_norm=0.5)
    config.mesh = common.mesh()
    return _tiny(config) if size == "tiny" else config


def _model(size: str) -> ConfigDict:
    layers, width, heads, intermediate = _SHAPES[size]
    return ConfigDict(
        {
            "name": "crammed_bert",
            "size": size,
            "vocab_size": 32_768,
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": intermediate,
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "max_position_embeddings": _LENGTH,
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
