r"""DeBERTaV3 (He et al. 2023): `configs/deberta.py:SIZE`, xsmall to large; mini and tiny are ours.

    bertjax pretrain --config configs/deberta.py:base --workdir runs/deberta_base \
        --config.data.corpus=corpora/wiki_books --config.tokenizer.path=vocab/deberta/spm.model

Attention reads content and relative positions (He et al. 2021, section 3.1; 256 logarithmic
buckets on either side, shared projections). A generator of half the depth replaces masked tokens,
and the encoder detects them with a loss of weight 50 (V3, section 3.1). The encoder's word
embeddings are those of the generator, without their gradient, plus a difference that it trains
(section 3.3). The generator predicts from an enhanced mask decoder, where absolute positions enter
(He et al. 2021, section 3.2). SentencePiece, 128,100 tokens, cased.

`SIZE,mlm` is the same encoder as a masked language model with a mask decoder, as in DeBERTa v1 and
v2: masks of 1 to 3 words, 1,000,000 steps of 2,048 sequences, Adam with a second beta of 0.999 and
a learning rate of 2e-4 (He et al. 2021, appendix).

    size    layers  width  heads  generator   parameters  with `,mlm`    SQuAD 2.0    MNLI-m/mm
    xsmall      12    384      6   6 layers  119,872,512   70,878,720  84.8 / 82.0  88.1 / 88.3
    small        6    768     12   3 layers  239,685,120  141,697,536  82.8 / 80.4  88.3 / 87.7
    base        12    768     12   6 layers  282,212,352  184,224,768  88.4 / 85.4  90.6 / 90.7
    large       24   1024     16  12 layers  565,186,560  434,536,448  91.5 / 89.0  91.8 / 91.9
    mini         4    256      4   2 layers   68,878,336   36,215,808
    tiny         2    128      2    1 layer      667,392      601,856   (a demonstration)

Parameters are those of the encoder in pretraining, which has two tables of word embeddings: an
export adds them up. The backbones have 22, 44, 86 and 304 million as published, without embeddings.
Scores are on dev sets, from the model cards (F1 / EM, accuracy).

Recipe (V3, section 5 and appendix): 500,000 steps of 8,192 sequences of up to 512 tokens; Adam with
betas of 0.9 and 0.98 and an epsilon of 1e-6, a learning rate of 6e-4, 3e-4 for large, warmup of
10,000 steps, linear decay, weight decay 0.01, dropout 0.1. xsmall has the recipe of small, as the
paper does not report it.

The weight of 50 is that of the paper (released code: 10). Where we differ: the head that detects
replaced tokens is that of ELECTRA (released code: a LayerNorm of the sum of each token's vector and
that of [CLS] before it), and generator and encoder are trained on one loss in one step (released
code: two optimizers, a step of each in turn).
"""

from ml_collections import ConfigDict

from configs import common

SIZES = ("tiny", "mini", "xsmall", "small", "base", "large")

RECIPES = ("", "mlm")
_SHAPES = {
    # Layers, width, heads, as released.
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "xsmall": (12, 384, 6),
    "small": (6, 768, 12),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}
_RATES = dict.fromkeys(SIZES, 6e-4) | {"large": 3e-4}
_VOCABULARY = 128_100


def get_config(argument: str = "base") -> ConfigDict:
    """Returns the config of a size, or of a size and a recipe, `SIZE,mlm`.

    Raises:
      UserError: Unknown size or recipe.
    """
    size, _, recipe = argument.partition(",")
    common.check_argument(size, SIZES)
    common.check_argument(recipe, RECIPES)
    steps, batch, rate = (1_000_000, 2048, 2e-4) if recipe else (500_000, 8192, _RATES[size])
    config = ConfigDict(common.run(num_train_steps=steps))
    config.model = _model(size)
    config.tokenizer = common.tokenizer("unigram", vocab_size=_VOCABULARY)
    config.tokenizer.lowercase = False
    config.data = common.data(format="full-sentences", pair="none")
    config.data.max_seq_length, config.data.batch_size = 512, batch
    config.optimizer = common.adamw(learning_rate=rate, warmup_steps=10_000)
    if recipe:
        config.model.update(mask_decoder_layers=2, embedding_sharing="es")
        config.objectives = ConfigDict({"enhanced_mlm": common.mlm()})
        config.objectives.enhanced_mlm.masking = "ngram"
        config.best_metric = "held_out/enhanced_mlm/loss"
    else:
        config.objectives = ConfigDict({"generator": _generator(), "rtd": {"weight": 50.0}})
        config.optimizer.adam_b2 = 0.98
        config.best_metric = "held_out/rtd/loss"
    config.mesh = common.mesh()
    return common.shrink_to_demo(config) if size == "tiny" else config


def _model(size: str) -> ConfigDict:
    """The published fields of `config.json`; tiny has buckets for its shorter sequences."""
    layers, width, heads = _SHAPES[size]
    return ConfigDict(
        {
            "name": "deberta",
            "size": size,
            "vocab_size": _VOCABULARY,
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": 4 * width,
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
            "max_position_embeddings": 512,
            "type_vocab_size": 0,
            "embedding_size": 0,
            "pos_att_type": ("p2c", "c2p"),
            "max_relative_positions": -1,
            "position_buckets": 32 if size == "tiny" else 256,
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
            "position_biased_input": False,
            "mask_decoder_layers": 0,
            "embedding_sharing": "gdes",
            "initializer_range": 0.02,
            "layer_norm_eps": 1e-7,
            "precision": "auto",
            "remat": "none",
            "unroll": 0,
        }
    )


def _generator() -> dict:
    """As wide as the encoder; all of the chosen tokens are masked, as in the released code."""
    return {
        "weight": 1.0,
        "size": 1.0,
        "depth": 0.5,
        "mask_decoder_layers": 2,
        "masked_lm_prob": 0.15,
        "max_predictions_per_seq": 0,
        "mask_share": 1.0,
        "hidden_act": "",
    }
