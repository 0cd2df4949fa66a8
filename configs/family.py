r"""Six systems at one small size and an equal number of tokens: `configs/family.py:SYSTEM`.

    bertjax pretrain --config configs/family.py:roberta --workdir runs/family/roberta \
        --config.data.input="('enwiki/*.gz',)" --config.data.validation_input="('heldout/*.gz',)"
    bertjax finetune --config configs/glue.py:mrpc,small --init runs/family/roberta --data glue \
        --workdir runs/family/roberta_mrpc --seeds 3

Specific to a system, as in its config file: the kind of tokenizer, text format, masks, objectives
and model. Equal for all: the sizes of BERT-tiny; a lowercased vocabulary of 8,192, trained on the
text; the optimizer; the initialisation; and the budget, 64 sequences of 64 tokens in each of 3,000
steps. There is no dropout, since every text is used once. Results are in experiments/LOG.md.

    system     parameters of the encoder
    bert                       1,527,680
    roberta                    1,527,808
    albert                       497,664
    spanbert                   1,527,680
    electra                      962,176
    xlnet                      1,478,272
"""

from ml_collections import ConfigDict

from configs import albert, bert, common, electra, roberta, spanbert, xlnet

RECIPES = ("bert", "roberta", "albert", "spanbert", "electra", "xlnet")
_RECORDS = {
    "bert": bert,
    "roberta": roberta,
    "albert": albert,
    "spanbert": spanbert,
    "electra": electra,
    "xlnet": xlnet,
}


def get_config(system: str) -> ConfigDict:
    """Returns the config of a system at the small size.

    Raises:
      UserError: Unknown system.
    """
    common.check_argument(system, RECIPES)
    config = _RECORDS[system].get_config("tiny")
    config.num_train_steps, config.log_every = 3000, 100
    config.eval_every, config.checkpoint_every, config.eval_examples = 500, 500, 1024
    config.model.vocab_size = config.tokenizer.vocab_size = 8192
    config.tokenizer.lowercase = True
    config.model.hidden_dropout_prob = config.model.attention_probs_dropout_prob = 0.0
    config.model.initializer_range = 0.08
    if "position_initializer" in config.model:
        config.model.position_initializer = "sinusoidal"
    config.data.input, config.data.phases = (), ()
    config.data.update(max_seq_length=64, batch_size=64, microbatches=1)
    config.optimizer = common.adamw(learning_rate=3e-3, warmup_steps=200)
    return config
