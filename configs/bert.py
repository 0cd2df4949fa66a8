r"""BERT (Devlin et al. 2019): `configs/bert.py:SIZE`, from tiny to large.

    bertjax pretrain --config configs/bert.py:base --workdir runs/bert_base \
        --config.data.corpus=corpora/wiki_books --config.tokenizer.path=vocab/bert-base-uncased

Recipe (section 3.1, appendix A.2): MLM and NSP over segment pairs, 1,000,000 steps of 256
sequences, of which 90% have 128 tokens and 10% have 512; Adam with a learning rate of 1e-4, warmup
of 10,000 steps, linear decay, weight decay 0.01, dropout 0.1. The small sizes are those of Turc et
al. 2019.

    size    layers  width  heads   parameters   GLUE leaderboard   average of 8 tasks
    tiny         2    128      2    4,385,920   64.2
    mini         4    256      4   11,170,560   65.8
    small        4    512      8   28,763,648   71.2
    medium       8    512      8   41,373,184   73.5
    base        12    768     12  109,482,240                      79.6
    large       24   1024     16  335,141,888   80.5               82.1

Both are test scores as published. The leaderboard counts WNLI and the diagnostics; the average is
that of the paper's table 1, without them.

Cost of base, as published: 4 days on 4 Cloud TPUs (16 chips).

Where we differ: masks are new in every step (released code: ten sets of masks, made in advance).
"""

from ml_collections import ConfigDict

from configs import common

SIZES = tuple(common.SIZES)


def get_config(size: str = "base") -> ConfigDict:
    """Returns the config of a size.

    Raises:
      UserError: Unknown size.
    """
    common.check_argument(size, SIZES)
    config = ConfigDict(common.run(num_train_steps=1_000_000))
    config.model = common.bert_model(size)
    config.tokenizer = common.tokenizer()
    config.data = common.data()
    config.data.phases = ((900_000, 128, 256), (100_000, 512, 256))
    config.objectives = ConfigDict({"mlm": common.mlm(), "sentence_pair": common.sentence_pair()})
    config.optimizer = common.adamw(learning_rate=1e-4, warmup_steps=10_000)
    config.mesh = common.mesh()
    return config
