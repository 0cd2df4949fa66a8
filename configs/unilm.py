r"""UniLM (Dong et al. 2019): `configs/unilm.py:SIZE`, base or large, and tiny.

    bertjax pretrain --config configs/unilm.py:large --workdir runs/unilm \
        --config.data.corpus=corpora/wiki_books --config.tokenizer.path=vocab/bert-base-cased

BERT's encoder with one of four attention masks per example (sections 2.3 and 2.5): bidirectional
for a third of the examples, left-to-right for a sixth, right-to-left for a sixth, and
sequence-to-sequence for a third, where the first segment is bidirectional and the second is causal
and attends to the first. 770,000 steps of 330 sequences of 512 tokens, a learning rate of 3e-5 with
a warmup of 40,000 steps.

    size    layers  width  heads   parameters
    base        12    768     12  108,313,344
    large       24   1024     16  333,583,360
    tiny         2    128      2      610,688   (a demonstration, vocabulary 1,024)

Cost of large, as published: 7 hours for 10,000 steps on 8 V100 GPUs.

Where we differ: random initialisation (published: that of BERT-large); no next sentence prediction
(published: in bidirectional examples); masks of single tokens (published: of two or three tokens in
a fifth of the cases). Examples with a left-to-right or right-to-left mask consist of two segments
as well, which count as one.
"""

from ml_collections import ConfigDict

from configs import common

SIZES = ("tiny", "base", "large")


def get_config(size: str = "large") -> ConfigDict:
    """Returns the config of a size.

    Raises:
      UserError: Unknown size.
    """
    common.check_argument(size, SIZES)
    config = ConfigDict(common.run(num_train_steps=770_000))
    config.best_metric = "held_out/unified_lm/loss"
    config.model = common.bert_model(size)
    config.model.update(vocab_size=28_996, type_vocab_size=6)
    config.tokenizer = common.tokenizer(vocab_size=28_996)
    config.tokenizer.lowercase = False
    config.data = common.data(format="segment-pair", pair="none")
    config.data.max_seq_length, config.data.batch_size = 512, 330
    config.objectives = ConfigDict({"unified_lm": _unified_lm()})
    config.optimizer = common.adamw(learning_rate=3e-5, warmup_steps=40_000)
    config.mesh = common.mesh()
    return common.shrink_to_demo(config) if size == "tiny" else config


def _unified_lm() -> ConfigDict:
    return ConfigDict(
        {
            "weight": 1.0,
            "shares": (1 / 3, 1 / 6, 1 / 6, 1 / 3),
            "masked_lm_prob": 0.15,
            "max_predictions_per_seq": 0,
            "masking": "token",  # or word, ngram, span
        }
    )
