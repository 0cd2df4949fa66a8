r"""GPT-3 (Brown et al. 2020): `configs/gpt3.py:SIZE`, from 125m to 175b, and tiny.

    bertjax pretrain --config configs/gpt3.py:125m --workdir runs/gpt3_125m \
        --config.data.corpus=corpora/web --config.tokenizer.path=vocab/gpt2

Recipe (section 2, table 2.1, appendix B): GPT-2 with 2,048 tokens of context; 300 billion tokens;
Adam with b1 = 0.9, b2 = 0.95, epsilon 1e-8, clipping at 1, weight decay 0.1; warmup over 375
million tokens, cosine decay of the learning rate to a tenth over 260 billion tokens.

    size    layers   width  heads      parameters   batch     rate   LAMBADA
    125m        12     768     12      125,226,240   0.5M     6e-4     18.6
    350m        24    1024     16      355,871,744   0.5M     3e-4      9.09
    760m        24    1536     16      760,300,032   0.5M   2.5e-4      6.53
    1.3b        24    2048     16    1,315,723,264   1M       2e-4      5.44
    2.7b        32    2560     32    2,651,553,280   1M     1.6e-4      4.60
    6.7b        32    4096     32    6,658,404,352   2M     1.2e-4      4.00
    13b         40    5120     40   12,853,386,240   2M       1e-4      3.56
    175b        96   12288     96  174,604,259,328   3.2M   0.6e-4      3.00
    tiny         2     128      2          790,016   (a demonstration, vocabulary 1,024)

Batches count tokens; LAMBADA is the published zero-shot perplexity. Cost of 175b, as published:
3,640 petaflop/s-days; it needs a mesh, such as `--config.mesh.fsdp=64 --config.mesh.tensor=8`, and
`--config.model.remat=full`.

Where we differ: every layer attends to all previous tokens (published: alternating with locally
banded attention, whose widths are not published). The table has 24 heads of 128 for 1.3b and a
width of 5,140 for 13b, which are not divisible; the nearest divisible sizes are used here. The
learning rate decays over the whole run. Batches have their full size from the first step
(published: they grow from 32,000 tokens).
"""

from ml_collections import ConfigDict

from configs import common

_TABLE = {
    # Layers, width, heads, batch size in sequences, learning rate.
    "tiny": (2, 128, 2, 256, 6e-4),
    "125m": (12, 768, 12, 256, 6e-4),
    "350m": (24, 1024, 16, 256, 3e-4),
    "760m": (24, 1536, 16, 256, 2.5e-4),
    "1.3b": (24, 2048, 16, 512, 2e-4),
    "2.7b": (32, 2560, 32, 512, 1.6e-4),
    "6.7b": (32, 4096, 32, 1024, 1.2e-4),
    "13b": (40, 5120, 40, 1024, 1e-4),
    "175b": (96, 12288, 96, 1536, 0.6e-4),
}
SIZES = tuple(_TABLE)
_CONTEXT, _TOKENS, _WARMUP_TOKENS = 2048, 300e9, 375e6


def get_config(size: str = "125m") -> ConfigDict:
    """Returns the config of a size.

    Raises:
      UserError: Unknown size.
    """
    common.check_argument(size, SIZES)
    *shape, batch_size, rate = _TABLE[size]
    step = batch_size * _CONTEXT
    config = ConfigDict(common.run(num_train_steps=round(_TOKENS / step)))
    config.best_metric = "held_out/causal_lm/loss"
    config.model = common.gpt_model("gpt2", size, *shape)
    config.model.max_position_embeddings = _CONTEXT
    config.tokenizer = common.tokenizer("bpe", vocab_size=50_257)
    config.tokenizer.lowercase = False
    config.data = common.data(format="packed", pair="none")
    config.data.update(max_seq_length=_CONTEXT, batch_size=batch_size, microbatches=16)
    config.objectives = ConfigDict({"causal_lm": common.causal_lm()})
    config.optimizer = common.adamw(rate, warmup_steps=round(_WARMUP_TOKENS / step))
    config.optimizer.update(
        schedule="cosine",
        end_learning_rate=rate / 10,
        weight_decay=0.1,
        adam_b2=0.95,
        adam_eps=1e-8,
    )
    config.mesh = common.mesh()
    return common.shrink_to_demo(config) if size == "tiny" else config
