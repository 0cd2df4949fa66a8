r"""ELECTRA (Clark et al. 2020): `configs/electra.py:SIZE`, small, base or large, and tiny.

    bertjax pretrain --config configs/electra.py:small --workdir runs/electra_small \
        --config.data.corpus=corpora/wiki_books --config.tokenizer.path=vocab/bert-base-uncased

Recipe (section 3, appendix A, table 6): a generator of the same depth and a fraction of the width
replaces masked tokens, and the encoder detects them; they share embeddings, and the loss of the
encoder has weight 50. Adam with an epsilon of 1e-6, warmup of 10,000 steps, linear decay, weight
decay 0.01, dropout 0.1. Fine-tuning uses the encoder alone, which has no pooler. To export a
fine-tuned run, fine-tune it with --config.task.pooler_act=gelu, the activation of the classifier in
transformers.

    size    layers  width  embedding  heads  generator  masked   parameters   GLUE (published)
    small       12    256        128      4        1/4     15%   13,483,008   79.9 (dev)
    base        12    768        768     12        1/3     15%  108,891,648   85.1 (dev)
    large       24   1024       1024     16        1/4     25%  334,092,288   89.0 (dev)
    tiny         2    128         64      2        1/2     15%      503,424   -

    size    steps      batch   length  learning rate
    small   1,000,000    128      128  5e-4
    base      766,000    256      512  2e-4
    large     400,000  2,048      512  2e-4

Cost of small, as published: 4 days on one V100.

Fine-tuning with layer-wise decay of the learning rate (appendix B): `configs/glue.py:TASK,electra`.
Where we differ: all examples have two segments, a tenth of them short (released code: a tenth have
one, a twentieth are short). In fine-tuning its classifier has a hidden layer, as in transformers;
the released code classifies the vector of [CLS] directly.
"""

from ml_collections import ConfigDict

from configs import common

SIZES = ("tiny", "small", "base", "large")

MODELS = {
    # Layers, width, embedding width (0: the same), heads, generator's width, masked share.
    "tiny": (2, 128, 64, 2, 1 / 2, 0.15),
    "small": (12, 256, 128, 4, 1 / 4, 0.15),
    "base": (12, 768, 0, 12, 1 / 3, 0.15),
    "large": (24, 1024, 0, 16, 1 / 4, 0.25),
}
RUNS = {
    # Steps, batch, length, learning rate.
    "tiny": (60, 16, 64, 1e-3),
    "small": (1_000_000, 128, 128, 5e-4),
    "base": (766_000, 256, 512, 2e-4),
    "large": (400_000, 2048, 512, 2e-4),
}


def get_config(size: str = "small") -> ConfigDict:
    """Returns the config of a size.

    Raises:
      UserError: Unknown size.
    """
    common.check_argument(size, SIZES)
    layers, width, embedding, heads, generator, masked = MODELS[size]
    steps, batch, length, rate = RUNS[size]
    config = ConfigDict(common.run(num_train_steps=steps))
    config.best_metric = "held_out/rtd/loss"
    config.model = common.bert_model("base")
    config.model.update(
        size=size,
        hidden_size=width,
        embedding_size=embedding,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        num_pooler_layers=0,
    )
    config.tokenizer = common.tokenizer()
    config.data = common.data(pair="none")
    config.data.max_seq_length, config.data.batch_size = length, batch
    config.objectives = ConfigDict(
        {
            "generator": {
                "weight": 1.0,
                "size": generator,
                "masked_lm_prob": masked,
                "max_predictions_per_seq": 0,
                "mask_share": 0.85,
                "hidden_act": "",
            },
            "rtd": {"weight": 50.0},
        }
    )
    config.optimizer = common.adamw(learning_rate=rate, warmup_steps=10_000)
    config.mesh = common.mesh()
    return common.shrink_to_demo(config) if size == "tiny" else config
