r"""Language models of equal size and token budget: `language_models:SYSTEM`.

    bertjax pretrain --config configs/language_models.py:gpt --workdir runs/language_models/gpt \
        --config.data.input="('enwiki/*.gz',)" --config.data.validation_input="('heldout/*.gz',)"
    python tools/measure_ngrams.py --model runs/language_models/gpt --input 'enwiki/*.gz' \
        --held_out 'heldout/*.gz'

GPT-2 (left-to-right), ELMo (both directions) and span corruption (T5's objective). Each system has
the model and objective of its config file; equal for all are the width of BERT-tiny, 4,096 tokens
or words in the softmax, and the budget, 4,096 tokens in each of 1,500 steps. There is no dropout,
since every text is used once.

    system           parameters of the model
    gpt                            1,052,160
    elmo                             696,272
    span_corruption                1,462,784
"""

from ml_collections import ConfigDict

from configs import common, elmo, gpt2, span_corruption

RECIPES = ("gpt", "elmo", "span_corruption")
_RECORDS = {"gpt": gpt2, "elmo": elmo, "span_corruption": span_corruption}
_SOFTMAX_SIZE = 4096


def get_config(system: str) -> ConfigDict:
    """Returns the config of a system at the small size.

    Raises:
      UserError: Unknown system.
    """
    common.check_argument(system, RECIPES)
    config = _RECORDS[system].get_config("tiny")
    config.num_train_steps, config.log_every = 1500, 100
    config.eval_every, config.checkpoint_every, config.eval_examples = 250, 500, 2048
    config.model.hidden_dropout_prob = 0.0
    if "attention_probs_dropout_prob" in config.model:
        config.model.attention_probs_dropout_prob = 0.0
    if "position_initializer" in config.model:
        config.model.initializer_range, config.model.position_initializer = 0.08, "sinusoidal"
    config.data.input = ()
    config.data.update(max_seq_length=64, batch_size=64, microbatches=1)
    config.optimizer.update(learning_rate=3e-3, warmup_steps=200)
    _set_softmax_size(config, system)
    return config


def _set_softmax_size(config: ConfigDict, system: str) -> None:
    """Sets the size of the softmax; ELMo's input vocabulary is four times as large."""
    config.tokenizer.vocab_size = _SOFTMAX_SIZE
    if system == "gpt":
        config.model.vocab_size = _SOFTMAX_SIZE
    elif system == "span_corruption":
        config.model.vocab_size = _SOFTMAX_SIZE + span_corruption.SENTINELS
    else:
        config.model.vocab_size = config.tokenizer.vocab_size = 4 * _SOFTMAX_SIZE
        config.objectives.bidirectional_lm.softmax_size = _SOFTMAX_SIZE
