r"""ModernBERT (Warner et al. 2024): `configs/modernbert.py:SIZE`, base or large, mini and tiny.

    bertjax pretrain --config configs/modernbert.py:base --workdir runs/modernbert \
        --config.data.corpus=corpora/web --config.tokenizer.path=vocab/modernbert
    bertjax pretrain --config configs/modernbert.py:base,extension --init runs/modernbert \
        --config.model.global_rope_theta=160000 --workdir runs/modernbert_8k \
        --config.data.corpus=corpora/long

Rotary positions, local attention of 128 tokens in two of three layers, GeGLU, no biases, 30% of the
tokens masked, packed sequences (sections 2.1 and 2.2; appendix A). Pretraining: 1.719 trillion
tokens in sequences of 1,024 with theta 10,000, StableAdamW at a constant learning rate after a
warmup of 3 billion tokens (large: 2), batches of 4,608 sequences, which grow from 768 over the
first 50 billion tokens. `extension` is the context extension: 300 billion tokens in sequences of
8,192 with a global theta of 160,000 and batches of 576, of which the last sixth decays with 1 -
sqrt.

    size    layers  width  heads      F    parameters   GLUE   learning rate
    base        22    768     12  1,152   149,014,272   88.4   8e-4, then 3e-4
    large       28   1024     16  2,624   394,781,696          5e-4, then 5e-5
    mini         4    256      4    384     4,327,680          (an hour on two cores)
    tiny         4    128      2    192       689,280          (a demonstration)

GLUE is the dev score on the authors' model card. Parameters are those of the encoder. Large was
continued at 5e-5 after 900 billion tokens, when its loss no longer fell.

A step of the published optimizer removes 1e-5 of a parameter at the peak of the learning rate, 1e-6
in the extension of large (released code: `decoupled_stableadamw`), which is a weight decay of that
share / learning rate in ours.

Where we differ: large starts from random weights (published: from those of base, tiled), and has
the batch sizes of base (published: 448 to 4,928, then 616); the rate decays to 0 (published: to a
thousandth); held-out text is masked as in training (published: 15%).

`mini` has the size and budget of `configs/bert_mini_hour.py`.
"""

from ml_collections import ConfigDict

from configs import common

_SHAPES = {
    # Layers, width, heads, intermediate size.
    "tiny": (4, 128, 2, 192),
    "mini": (4, 256, 4, 384),
    "base": (22, 768, 12, 1152),
    "large": (28, 1024, 16, 2624),
}
_EXTENSION = "extension"
RECIPES = (*_SHAPES, *(f"{size},{_EXTENSION}" for size in ("base", "large")))

_LENGTH, _BATCH = 1024, 4608
_TOKENS, _GROWTH_TOKENS = 1.719e12, 50e9
_EXTENSION_LENGTH, _EXTENSION_BATCH, _EXTENSION_TOKENS = 8192, 576, 300e9
_WARMUP_TOKENS = {"base": 3e9, "large": 2e9}
_RATES = {"base": (8e-4, 3e-4), "large": (5e-4, 5e-5)}
_DECAYS = {"base": (1e-5, 1e-5), "large": (1e-5, 1e-6)}
"""Shares of a parameter that a step removes at the peak of the learning rate."""


def get_config(recipe: str = "base") -> ConfigDict:
    """Returns the config of a size, or of its context extension.

    Raises:
      UserError: Unknown size.
    """
    common.check_argument(recipe, RECIPES)
    size, _, extension = recipe.partition(",")
    config = _pretraining(size)
    if extension:
        return _context_extension(config, size)
    if size == "mini":
        return _mini(config)
    return common.shrink_to_demo(config) if size == "tiny" else config


def _pretraining(size: str) -> ConfigDict:
    growth = common.batch_size_warmup(400_000, _LENGTH, range(768, _BATCH + 1, 768), _GROWTH_TOKENS)
    growth = growth[:-1]
    steps = round((_TOKENS - _GROWTH_TOKENS) / (_BATCH * _LENGTH))
    total = sum(steps for steps, *_ in growth) + steps
    config = ConfigDict(common.run(num_train_steps=total))
    config.model = _model(size)
    config.tokenizer = common.tokenizer("bpe", vocab_size=config.model.vocab_size)
    config.tokenizer.lowercase = False
    config.data = common.data(format="packed-documents", pair="none")
    config.data.update(max_seq_length=_LENGTH, batch_size=_BATCH, microbatches=16)
    config.data.phases = (*growth, (steps, _LENGTH, _BATCH))
    config.objectives = ConfigDict({"mlm": common.mlm()})
    config.objectives.mlm.masked_lm_prob = 0.3
    (rate, _), (decay, _) = (of.get(size, of["base"]) for of in (_RATES, _DECAYS))
    config.optimizer = ConfigDict(
        {
            "name": "stable_adamw",
            "learning_rate": rate,
            "schedule": "constant",
            "warmup_steps": round(_WARMUP_TOKENS.get(size, 3e9) / (768 * _LENGTH)),
            "restarts": (),
            "weight_decay": decay / rate,
            "adam_b1": 0.9,
            "adam_b2": 0.98,
            "adam_eps": 1e-6,
            "max_grad_norm": 0.0,
        }
    )
    config.mesh = common.mesh()
    return config


def _model(size: str) -> ConfigDict:
    layers, width, heads, intermediate = _SHAPES[size]
    return ConfigDict(
        {
            "name": "modernbert",
            "size": size,
            "vocab_size": 50368,
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": intermediate,
            "hidden_act": "gelu",
            "embedding_dropout": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "attention_output_dropout_prob": 0.1,
            "hidden_dropout_prob": 0.0,
            "max_position_embeddings": 8192,
            "global_attn_every_n_layers": 3,
            "local_attention": 128,
            "global_rope_theta": 10_000.0,
            "local_rope_theta": 10_000.0,
            "initializer_range": 0.02,
            "layer_norm_eps": 1e-5,
            "classifier_pooling": "mean",  # as released; pretraining does not train the first token
            "precision": "auto",
            "remat": "none",
            "unroll": 0,
        }
    )


def _context_extension(config: ConfigDict, size: str) -> ConfigDict:
    config.num_train_steps = round(_EXTENSION_TOKENS / (_EXTENSION_BATCH * _EXTENSION_LENGTH))
    config.model.global_rope_theta = 160_000.0
    config.data.update(max_seq_length=_EXTENSION_LENGTH, batch_size=_EXTENSION_BATCH, phases=())
    (_, rate), (_, decay) = _RATES[size], _DECAYS[size]
    config.optimizer.update(learning_rate=rate, weight_decay=decay / rate, warmup_steps=0)
    config.optimizer.update(schedule="warmup_stable_decay", end_learning_rate=0.0)
    config.optimizer.decay_share = 1 / 6
    config.optimizer.decay_steps = 0
    config.optimizer.decay_shape = "1-sqrt"
    return config


def _mini(config: ConfigDict) -> ConfigDict:
    """The budget, vocabulary and lengths of `configs/bert_mini_hour.py`."""
    config.num_train_steps, config.eval_every, config.checkpoint_every = 6000, 500, 250
    config.eval_examples = 1024
    config.model.vocab_size = config.tokenizer.vocab_size = 8192
    config.model.attention_output_dropout_prob = 0.0
    config.tokenizer.update(kind="wordpiece", lowercase=True)
    config.data.update(microbatches=1, phases=((5000, 64, 64), (1000, 128, 32)))
    config.optimizer.update(learning_rate=1e-3, weight_decay=0.01, warmup_steps=200)
    config.optimizer.update(schedule="warmup_stable_decay", end_learning_rate=0.0)
    config.optimizer.decay_share = 0.2
    config.optimizer.decay_steps = 0
    config.optimizer.decay_shape = "1-sqrt"
    return config
