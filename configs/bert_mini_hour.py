r"""BERT-mini pretrained for an hour on two CPU cores: GLUE scores of a small budget.

    bertjax pretrain --config configs/bert_mini_hour.py --workdir runs/mini \
        --config.data.input="('enwiki/*.gz',)" --config.data.validation_input="('heldout/*.gz',)"

The sizes are those of BERT-mini (Turc et al. 2019). Departures from the published recipe, because
25 million tokens are a thousandth of its budget: a WordPiece vocabulary of 8,192, trained on the
text; 64 sequences of 64 tokens, then 32 of 128; a learning rate of 1e-3; a larger init stddev, with
positions initialised as sinusoids; no dropout, since every text is used once. Parameters: 5,454,080
in the encoder. Results, also on GLUE, are in experiments/LOG.md.
"""

from ml_collections import ConfigDict

from configs import common


def get_config() -> ConfigDict:
    """Returns the config."""
    config = ConfigDict(common.run(num_train_steps=6000))
    config.eval_every, config.checkpoint_every = 500, 250
    config.eval_examples = 1024
    config.model = common.bert_model("mini")
    config.model.vocab_size = 8192
    config.model.initializer_range = 0.04
    config.model.position_initializer = "sinusoidal"
    config.model.hidden_dropout_prob = 0.0
    config.model.attention_probs_dropout_prob = 0.0
    config.tokenizer = common.tokenizer(vocab_size=8192)
    config.data = common.data()
    config.data.phases = ((5000, 64, 64), (1000, 128, 32))
    config.objectives = ConfigDict({"mlm": common.mlm(), "sentence_pair": common.sentence_pair()})
    config.optimizer = common.adamw(learning_rate=1e-3, warmup_steps=200)
    config.mesh = common.mesh()
    return config
