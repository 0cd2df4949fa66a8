"""Quickstart: a BERT-tiny on the documentation included in Python, in two minutes.

    bertjax pretrain --config configs/quickstart.py --workdir runs/quickstart

It needs no data and no download: the corpus is `python-docs`, and the tokenizer is trained on it.
The recipe is BERT's (MLM and next sentence prediction, post-norm) with a learning rate and an init
stddev for this size and length, on short sequences, which train faster, and without dropout, since
the run is about one epoch.

Parameters: 954,240 in the encoder. Results are in experiments/LOG.md.
"""

from ml_collections import ConfigDict

from configs import common


def get_config() -> ConfigDict:
    """Returns the config."""
    config = ConfigDict(common.run(num_train_steps=800))
    config.log_every, config.eval_every, config.checkpoint_every = 50, 400, 400
    config.eval_examples = 2048
    config.model = common.bert_model("tiny")
    config.model.vocab_size = 4096
    config.model.max_position_embeddings = 128
    config.model.initializer_range = 0.08
    config.model.position_initializer = "sinusoidal"
    config.model.hidden_dropout_prob = 0.0
    config.model.attention_probs_dropout_prob = 0.0
    config.tokenizer = common.tokenizer(vocab_size=4096)
    config.data = common.data()
    config.data.input = ("python-docs",)
    config.data.validation_fraction = 0.03
    config.data.max_seq_length, config.data.batch_size = 64, 64
    config.objectives = ConfigDict({"mlm": common.mlm(), "sentence_pair": common.sentence_pair()})
    config.optimizer = common.adamw(learning_rate=3e-3, warmup_steps=80)
    config.mesh = common.mesh()
    return config
