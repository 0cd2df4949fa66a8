r"""Masked sequence to sequence (MASS, Song et al. 2019), on the Transformer: base and tiny.

    bertjax pretrain --config configs/masked_seq2seq.py:base --workdir runs/masked_seq2seq \
        --config.data.corpus=corpora/news --config.tokenizer.path=vocab/news

Recipe (sections 3.2 and 4.1): a contiguous half of the encoder's input is masked, 80% of the tokens
by [MASK] and 10% by a random token, and the decoder reconstructs this fragment; its inputs are the
previous tokens of the fragment only. A Transformer of 6 + 6 layers, width 1,024; BPE with 60,000
tokens; Adam with a learning rate of 1e-4.

    size    layers  width  heads   parameters
    base       6+6   1024     16  237,797,376
    tiny       2+2    128      2    1,056,768   (a demonstration, vocabulary 1,024)

Where we differ: texts of one language. The steps, the batch size and the schedule are ours.
"""

from ml_collections import ConfigDict

from configs import common

SIZES = ("tiny", "base")
_SHAPES = {"tiny": (2, 128, 2), "base": (6, 1024, 16)}


def get_config(size: str = "base") -> ConfigDict:
    """Returns the config of a size.

    Raises:
      UserError: Unknown size.
    """
    common.check_argument(size, SIZES)
    config = ConfigDict(common.run(num_train_steps=500_000))
    config.best_metric = "held_out/mass/loss"
    config.model = common.transformer_model(size, *_SHAPES[size])
    config.model.update(vocab_size=60_000, hidden_act="gelu")
    config.tokenizer = common.tokenizer("sentencepiece_bpe", vocab_size=60_000)
    config.tokenizer.lowercase = False
    config.data = common.data(format="doc-sentences", pair="none")
    config.objectives = ConfigDict({"mass": _mass()})
    config.optimizer = common.adamw(learning_rate=1e-4, warmup_steps=4_000)
    config.optimizer.update(schedule="inverse_square_root", adam_b2=0.98)
    config.mesh = common.mesh()
    return common.shrink_to_demo(config) if size == "tiny" else config


def _mass() -> ConfigDict:
    shares = {"fragment_share": 0.5, "mask_share": 0.8, "random_share": 0.1}
    return ConfigDict({"weight": 1.0, **shares})
