r"""GPT (Radford et al. 2018): `configs/gpt1.py:SIZE`, base or tiny.

    bertjax pretrain --config configs/gpt1.py:base --workdir runs/gpt1 \
        --config.data.corpus=corpora/books

Recipe (section 4.1): a causal language model on windows of 512 tokens, batches of 64, for 100
epochs of BooksCorpus, which is about 3,500,000 steps; Adam with a learning rate of 2.5e-4, warmup
of 2,000 steps, cosine decay to 0, weight decay 0.01, epsilon 1e-8, dropout 0.1; BPE with 40,000
merges. Post-norm blocks with the tanh GELU, learned positions.

    size    layers  width  heads   parameters   MNLI-m   SST-2   CoLA   (test, as published)
    base        12    768     12  116,534,784    82.1     91.3   45.4
    tiny         2    128      2      593,152   (a demonstration, vocabulary 1,024)

Cost of base, as published: 30 days on 8 P600 GPUs.

Where we differ: byte-level BPE, which encodes any text and keeps case (published: BPE within words,
after normalisation by ftfy and spaCy and lowercasing).
"""

from ml_collections import ConfigDict

from configs import common

SIZES = ("tiny", "base")


def get_config(size: str = "base") -> ConfigDict:
    """Returns the config of a size.

    Raises:
      UserError: Unknown size.
    """
    common.check_argument(size, SIZES)
    config = ConfigDict(common.run(num_train_steps=3_500_000))
    config.best_metric = "held_out/causal_lm/loss"
    shape = (2, 128, 2) if size == "tiny" else (12, 768, 12)
    config.model = common.gpt_model("gpt1", size, *shape)
    config.model.update(vocab_size=40_478, max_position_embeddings=512)
    config.tokenizer = common.tokenizer("bpe", vocab_size=40_478)
    config.tokenizer.lowercase = False
    config.data = common.data(format="packed", pair="none")
    config.data.update(max_seq_length=512, batch_size=64)
    config.objectives = ConfigDict({"causal_lm": common.causal_lm()})
    config.optimizer = common.adamw(learning_rate=2.5e-4, warmup_steps=2000)
    config.optimizer.update(schedule="cosine", adam_eps=1e-8)
    config.mesh = common.mesh()
    return common.shrink_to_demo(config) if size == "tiny" else config
