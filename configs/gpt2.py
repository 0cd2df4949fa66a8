r"""GPT-2 (Radford et al. 2019): `configs/gpt2.py:SIZE`, small, medium, large, xl and tiny.

    bertjax pretrain --config configs/gpt2.py:small --workdir runs/gpt2 \
        --config.data.corpus=corpora/openwebtext --config.tokenizer.path=vocab/gpt2

Recipe (section 2): GPT with pre-norm blocks and another LayerNorm after the last, a smaller init
stddev of the kernels on the residual path, 1,024 tokens of context, batches of 512, and byte-level
BPE without normalisation and 50,257 tokens. Learning rates and steps are not published (each
learning rate was tuned by hand): these are from later reproductions, 6e-4 with a warmup of 2,000
steps and cosine decay to a tenth over 600,000 steps, weight decay 0.1, b2 of 0.95, clipping at 1;
smaller learning rates for larger models.

    size    layers  width  heads     parameters   LAMBADA   WikiText-2   PTB
    small       12    768     12    124,439,808     35.13        29.41   65.85
    medium      24   1024     16    354,823,168     15.60        22.76   47.33
    large       36   1280     20    774,030,080     10.87        19.93   40.31
    xl          48   1600     25  1,557,611,200      8.63        18.34   35.76
    tiny         2    128      2        658,944   (a demonstration, vocabulary 1,024)

The scores are zero-shot perplexities (table 3). The paper counts 117M, 345M, 762M and 1542M; these
are the counts of the released weights. A step of 512 x 1,024 tokens is split into microbatches: set
`--config.data.microbatches` according to the memory of the devices.
`--config.data.format=packed-apart` prevents attention between the documents of a window, unlike the
published recipe.
"""

from ml_collections import ConfigDict

from configs import common

_SHAPES = {
    "tiny": (2, 128, 2),
    "small": (12, 768, 12),
    "medium": (24, 1024, 16),
    "large": (36, 1280, 20),
    "xl": (48, 1600, 25),
}
SIZES = tuple(_SHAPES)
_RATES = {"tiny": 6e-4, "small": 6e-4, "medium": 3e-4, "large": 2.5e-4, "xl": 2e-4}


def get_config(size: str = "small") -> ConfigDict:
    """Returns the config of a size.

    Raises:
      UserError: Unknown size.
    """
    common.check_argument(size, SIZES)
    config = ConfigDict(common.run(num_train_steps=600_000))
    config.best_metric = "held_out/causal_lm/loss"
    config.model = common.gpt_model("gpt2", size, *_SHAPES[size])
    config.tokenizer = common.tokenizer("bpe", vocab_size=50_257)
    config.tokenizer.lowercase = False
    config.data = common.data(format="packed", pair="none")
    config.data.update(max_seq_length=1024, batch_size=512, microbatches=16)
    config.objectives = ConfigDict({"causal_lm": common.causal_lm()})
    config.optimizer = common.adamw(learning_rate=_RATES[size], warmup_steps=2000)
    config.optimizer.update(
        schedule="cosine",
        end_learning_rate=_RATES[size] / 10,
        weight_decay=0.1,
        adam_b2=0.95,
        adam_eps=1e-8,
    )
    config.mesh = common.mesh()
    return common.shrink_to_demo(config) if size == "tiny" else config
