r"""Text infilling, BART's objective (Lewis et al. 2020), on the Transformer: base, large and tiny.

    bertjax pretrain --config configs/text_infilling.py:base --workdir runs/text_infilling \
        --config.data.corpus=corpora/openwebtext --config.tokenizer.path=vocab/roberta

Recipe (sections 2.2 and 5.1): 30% of a text is masked in spans whose lengths are
Poisson-distributed with a mean of 3, each replaced by one [MASK], and the decoder reconstructs the
whole text; GELU; the BPE of GPT-2; 500,000 steps of 8,000 sequences in 16 microbatches.

    size    layers  width  heads   parameters
    base       6+6    768     12  137,841,408
    large    12+12   1024     16  404,186,112
    tiny       2+2    128      2    1,056,768   (a demonstration, vocabulary 1,024)

Where we differ: sentences keep their order (BART also permutes them, with little effect at base
size according to the paper's table 1). The model is the Transformer of `configs/transformer.py`,
with sinusoidal positions (BART: learned positions, and a LayerNorm after the embeddings). The
learning rate of 4e-4 and its warmup are ours; the paper does not report them.
"""

from ml_collections import ConfigDict

from configs import common

SIZES = ("tiny", "base", "large")
_SHAPES = {"tiny": (2, 128, 2), "base": (6, 768, 12), "large": (12, 1024, 16)}


def get_config(size: str = "base") -> ConfigDict:
    """Returns the config of a size.

    Raises:
      UserError: Unknown size.
    """
    common.check_argument(size, SIZES)
    config = ConfigDict(common.run(num_train_steps=500_000))
    config.best_metric = "held_out/infilling/loss"
    config.model = common.transformer_model(size, *_SHAPES[size])
    config.model.update(vocab_size=50_265, hidden_act="gelu")
    config.tokenizer = common.tokenizer("bpe", vocab_size=50_265)
    config.tokenizer.lowercase = False
    config.data = common.data(format="full-sentences", pair="none")
    config.data.update(max_seq_length=512, batch_size=8_000, microbatches=16)
    config.objectives = ConfigDict(
        {"infilling": {"weight": 1.0, "masked_share": 0.3, "mean_span_length": 3.0}}
    )
    config.optimizer = common.adamw(learning_rate=4e-4, warmup_steps=10_000)
    config.mesh = common.mesh()
    return common.shrink_to_demo(config) if size == "tiny" else config
