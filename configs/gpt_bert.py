r"""GPT-BERT (Charpentier & Samuel 2024): `configs/gpt_bert.py:SIZE`, 10m, 100m, mini and tiny.

    bertjax pretrain --config configs/gpt_bert.py:100m --workdir runs/gpt_bert \
        --config.data.corpus=corpora/babylm_100m

One encoder for masked and causal language modelling, the winner of the BabyLM Challenge 2024.
Masked tokens are predicted from the position before them; one example in 16 has causal attention
and predicts every next token (`--config.objectives.mntp.causal_share`: 0.5 for a ratio of 1:1, 0.25
for 1:3). The model is that of LTG-BERT (Samuel et al. 2023) with a gate of the attention and
depth-weighted sums of layers.

`SIZE,mlm` is LTG-BERT, the winner of 2023: the same without gate and sums, as a bidirectional
masked language model.

    size    layers  width  heads      F   vocabulary   parameters   with `,mlm`
    10m         12    384      6  1,280        8,192   29,736,132    27,577,728
    100m        12    768     12  2,560       16,384  118,847,556    97,622,784
    mini         4    256      4    864        8,192    6,083,884     5,331,200
    tiny         2    128      2    448        1,024      648,590       542,336

Recipe of the released code (ltgoslo/gpt-bert): LAMB with betas of 0.9 and 0.98, weight decay 0.1,
clipping at 2, cosine decay to a tenth, warmup of 1.6% of the steps, an average of the weights with
decay 0.999, a z-loss of 1e-4; 7,812 steps at 1.41e-2 for 10 million words, 15,625 at 1e-2 for 100
million. The masked share falls from 30% to 15% over the run. Sequences have 128 tokens, from 70% of
the run on 256 and from 90% on 512; batches grow linearly from 1.05 to 4.2 million tokens. The
recipe of LTG-BERT (ltgoslo/ltg-bert, folder babylm) has a masked share of 15%, 15,625 steps at
1e-2, 10% of them with 512 tokens, widths F of 1,024 and 2,048, and a vocabulary of 16,384.

Where we differ: batches grow in ten stages; the learning rate has no cooldown to 0 in the last 1.6%
of the steps; the kind of an example is sampled (published: a fixed share of the GPUs); masks are of
1 to 3 words, short ones more often, each of whose tokens is masked, replaced or kept on its own
(published: 1 to 3 tokens, equally often and treated alike); for LTG-BERT they are of up to 10
words, 3.8 on average (published: tokens, 2.7 on average); masks do not prefer tokens that were
masked less often in earlier epochs; rows are full sentences that attend to each other across
documents (published: segments that do not); the LayerNorm in the head of GPT-BERT has parameters,
and no dropout follows that of either model. Batches of LTG-BERT are those of its run on the British
National Corpus; for BabyLM they depended on the number of GPUs. Its embeddings of words and
distances decay (published: they do not).

`mini` has the size and budget of `configs/bert_mini_hour.py`, and AdamW. Sizes and recipes of mini
and tiny are ours.
"""

import math

from ml_collections import ConfigDict

from configs import common

_SHAPES = {
    # Layers, width, heads, intermediate size; that of LTG-BERT; vocabulary.
    "tiny": (2, 128, 2, 448, 352, 1024),
    "mini": (4, 256, 4, 864, 704, 8192),
    "10m": (12, 384, 6, 1280, 1024, 8192),
    "100m": (12, 768, 12, 2560, 2048, 16_384),
}
SIZES = tuple(_SHAPES)
RECIPES = ("", "mlm")
_STEPS = {"10m": 31_250 // 4}
_RATES = {"10m": 1.41e-2}
_SEQUENCES = 32_768
"""Of 128 tokens, in a full batch."""
_LENGTHS = (128,) * 7 + (256,) * 2 + (512,)  # in each tenth of a run


def get_config(argument: str = "100m") -> ConfigDict:
    """Returns the config of a size, or of a size and a recipe, `SIZE,mlm`.

    Raises:
      UserError: Unknown size or recipe.
    """
    size, _, recipe = argument.partition(",")
    common.check_argument(size, SIZES)
    common.check_argument(recipe, RECIPES)
    steps = 31_250 // 2 if recipe else _STEPS.get(size, 31_250 // 2)
    config = ConfigDict(common.run(num_train_steps=steps))
    config.model = _model(size, recipe)
    config.tokenizer = common.tokenizer("bpe", vocab_size=config.model.vocab_size)
    config.tokenizer.lowercase = False
    config.data = common.data(format="full-sentences", pair="none")
    config.data.microbatches = 16
    config.optimizer = common.adamw(
        learning_rate=1e-2 if recipe else _RATES.get(size, 1e-2), warmup_steps=steps * 16 // 1000
    )
    config.optimizer.update(name="lamb", schedule="cosine", weight_decay=0.1, max_grad_norm=2.0)
    config.optimizer.update(adam_b2=0.98, end_learning_rate=config.optimizer.learning_rate / 10)
    if recipe:
        _add_mlm(config)
    else:
        _add_mntp(config)
    config.mesh = common.mesh()
    if size == "mini":
        return _mini(config)
    return _tiny(config) if size == "tiny" else config


def _add_mntp(config: ConfigDict) -> None:
    config.objectives = ConfigDict({"mntp": common.mlm()})
    config.objectives.mntp.update(
        masked_lm_prob=0.3,
        masking="ngram",
        final_masked_lm_prob=0.15,
        causal_share=1 / 16,
        z_loss=1e-4,
        positions_at_once=0,
    )
    config.best_metric = "held_out/mntp/loss"
    config.optimizer.update(adam_eps=1e-8, ema_decay=0.999)
    tenth = config.num_train_steps // 10
    last = config.num_train_steps - 9 * tenth
    config.data.phases = tuple(
        (last if number == 9 else tenth, length, _batch_size(length, (number + 0.5) / 10))
        for number, length in enumerate(_LENGTHS)
    )


def _batch_size(length: int, done: float) -> int:
    """Sequences of a batch that has a quarter of the full size at first, rounded to 256."""
    return 256 * round(_SEQUENCES * 128 / length * (1 + 3 * done) / 4 / 256)


def _add_mlm(config: ConfigDict) -> None:
    config.objectives = ConfigDict({"mlm": common.mlm()})
    config.objectives.mlm.masking = "span"
    config.data.short_seq_prob = 0.1
    long = config.num_train_steps // 10
    short = config.num_train_steps - long
    config.data.phases = ((short, 128, _SEQUENCES), (long, 512, _SEQUENCES // 4))


def _model(size: str, recipe: str) -> ConfigDict:
    layers, width, heads, wide, narrow, vocabulary = _SHAPES[size]
    return ConfigDict(
        {
            "name": "gpt_bert",
            "size": size,
            "vocab_size": 16_384 if recipe else vocabulary,
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": narrow if recipe else wide,
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
            "max_position_embeddings": 512,
            "position_bucket_size": 32,
            "attention_gate": not recipe,
            "layer_weights": not recipe,
            "interleaved_positions": False,
            "head_norm_parameters": not recipe,
            "initializer_range": math.sqrt(2 / (5 * width)),
            "layer_norm_eps": 1e-7 if recipe else 1e-5,
            "precision": "auto",
            "remat": "none",
            "unroll": 0,
        }
    )


def _mini(config: ConfigDict) -> ConfigDict:
    """The budget of `configs/bert_mini_hour.py`; no dropout, since every text is used once."""
    config.num_train_steps, config.eval_every, config.checkpoint_every = 6000, 500, 250
    config.eval_examples = 1024
    config.model.update(vocab_size=8192, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config.tokenizer.update(kind="wordpiece", vocab_size=8192, lowercase=True)
    config.data.update(microbatches=1, phases=((5000, 64, 64), (1000, 128, 32)))
    config.optimizer.update(name="adamw", learning_rate=1e-3, warmup_steps=200)
    config.optimizer.update(end_learning_rate=1e-4)
    return config


def _tiny(config: ConfigDict) -> ConfigDict:
    """A demonstration; LAMB's learning rate is relative to the size of a parameter."""
    config = common.shrink_to_demo(config)
    config.optimizer.update(learning_rate=1e-2, end_learning_rate=1e-3)
    return config
