"""Students of BERT-mini, and the same without a teacher: `configs/students.py:STUDENT`.

    bertjax pretrain --config configs/students.py:distilbert --workdir runs/distilbert \
        --config.objectives.soft_targets.teacher=runs/mini \
        --config.tokenizer.path=runs/mini/tokenizer --config.data.input="('enwiki/*.gz',)"
    bertjax pretrain --config configs/students.py:distilbert_alone --workdir runs/alone \
        --config.tokenizer.path=runs/mini/tokenizer --config.data.input="('enwiki/*.gz',)"
    bertjax pretrain --config configs/students.py:tinybert --workdir runs/tinybert \
        --config.objectives.layer_matching.teacher=runs/mini \
        --config.tokenizer.path=runs/mini/tokenizer --config.data.input="('enwiki/*.gz',)"

The teacher is the run of `configs/bert_mini_hour.py`: 4 layers, 256 wide. DistilBERT's student has
2 of these layers; TinyBERT's has 2 layers of half the width, and its task-specific stages are those
of `configs/tinybert_glue.py`. Objectives are those of `configs/distilbert.py` and
`configs/tinybert.py`, of the students without a teacher MLM alone; all have 1,000 steps of 64
sequences of 64 tokens. What came of it stands in experiments/LOG.md.

    student            parameters
    distilbert          3,808,256
    distilbert_alone    3,808,256
    tinybert            1,527,680
    tinybert_alone      1,527,680
"""

from ml_collections import ConfigDict

from configs import common, distilbert, tinybert

RECIPES = ("distilbert", "distilbert_alone", "tinybert", "tinybert_alone")


def get_config(student: str) -> ConfigDict:
    """The recipe for a student.

    Raises:
      UserError: there is no such student.
    """
    common.check_argument(student, RECIPES)
    name, _, alone = student.partition("_")
    config = _distilbert() if name == "distilbert" else _tinybert()
    config.num_train_steps, config.log_every = 1000, 50
    config.eval_every, config.checkpoint_every, config.eval_examples = 500, 250, 1024
    config.model.vocab_size = config.tokenizer.vocab_size = 8192
    config.model.hidden_dropout_prob = config.model.attention_probs_dropout_prob = 0.0
    config.model.initializer_range = 0.08 if name == "tinybert" else 0.04
    config.model.position_initializer = "sinusoidal"
    config.data.update(max_seq_length=64, batch_size=64)
    config.optimizer = common.adamw(learning_rate=1e-3, warmup_steps=100)
    if alone:
        config.objectives = ConfigDict({"mlm": common.mlm()})
        config.best_metric = "held_out/mlm/loss"
    return config


def _distilbert() -> ConfigDict:
    """Half of BERT-mini, as wide."""
    config = distilbert.get_config("base")
    mini = common.bert_model("mini")
    for field in ("size", "hidden_size", "num_attention_heads", "intermediate_size"):
        config.model[field] = mini[field]
    config.model.num_hidden_layers = mini.num_hidden_layers // 2
    return config


def _tinybert() -> ConfigDict:
    """BERT-tiny's shape: two layers, half as wide as BERT-mini."""
    config = tinybert.get_config("4")
    tiny = common.bert_model("tiny")
    shape = ("size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    for field in shape:
        config.model[field] = tiny[field]
    return config
