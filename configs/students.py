r"""Distillation of a small BERT, and baselines without a teacher: `configs/students.py:STUDENT`.

    bertjax pretrain --config configs/students.py:distilbert --workdir runs/distilbert \
        --config.objectives.soft_targets.teacher=runs/family/bert \
        --config.tokenizer.path=runs/family/bert/tokenizer --config.data.input="('enwiki/*.gz',)"
    bertjax pretrain --config configs/students.py:distilbert_alone --workdir runs/alone \
        --config.tokenizer.path=runs/family/bert/tokenizer --config.data.input="('enwiki/*.gz',)"
    bertjax pretrain --config configs/students.py:tinybert --workdir runs/tinybert \
        --config.objectives.layer_matching.teacher=runs/family/bert \
        --config.tokenizer.path=runs/family/bert/tokenizer --config.data.input="('enwiki/*.gz',)"

The teacher is the run of `configs/family.py:bert`: 2 layers, width 128. DistilBERT's student has
one of these layers; TinyBERT's has two of half the width, and its task-specific stages are those of
`configs/tinybert_glue.py`. Objectives are those of `configs/distilbert.py` and
`configs/tinybert.py`, and MLM only for students without a teacher; all have 1,000 steps of 64
sequences of 64 tokens. Results are in experiments/LOG.md.

    student            parameters
    distilbert          1,312,640
    distilbert_alone    1,312,640
    tinybert              661,440
    tinybert_alone        661,440
"""

from ml_collections import ConfigDict

from configs import common, distilbert, tinybert

RECIPES = ("distilbert", "distilbert_alone", "tinybert", "tinybert_alone")


def get_config(student: str) -> ConfigDict:
    """Returns the config of a student.

    Raises:
      UserError: Unknown student.
    """
    common.check_argument(student, RECIPES)
    name, _, alone = student.partition("_")
    config = _distilbert() if name == "distilbert" else _tinybert()
    config.num_train_steps, config.log_every = 1000, 50
    config.eval_every, config.checkpoint_every, config.eval_examples = 500, 250, 1024
    config.model.vocab_size = config.tokenizer.vocab_size = 8192
    config.model.hidden_dropout_prob = config.model.attention_probs_dropout_prob = 0.0
    config.model.initializer_range = 0.08
    config.model.position_initializer = "sinusoidal"
    config.data.update(max_seq_length=64, batch_size=64)
    config.optimizer = common.adamw(learning_rate=3e-3, warmup_steps=100)
    if alone:
        config.objectives = ConfigDict({"mlm": common.mlm()})
        config.best_metric = "held_out/mlm/loss"
    return config


def _distilbert() -> ConfigDict:
    """Half of the layers of BERT-tiny, equal width."""
    config = distilbert.get_config("base")
    tiny = common.bert_model("tiny")
    for field in ("size", "hidden_size", "num_attention_heads", "intermediate_size"):
        config.model[field] = tiny[field]
    config.model.num_hidden_layers = tiny.num_hidden_layers // 2
    return config


def _tinybert() -> ConfigDict:
    """The number of layers of BERT-tiny, half of the width."""
    config = tinybert.get_config("4")
    tiny = common.bert_model("tiny")
    for field in ("num_hidden_layers", "num_attention_heads"):
        config.model[field] = tiny[field]
    for field in ("hidden_size", "intermediate_size"):
        config.model[field] = tiny[field] // 2
    return config
