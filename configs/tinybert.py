r"""TinyBERT, general distillation (Jiao et al. 2020): `configs/tinybert.py:SIZE`, 4, 6, tiny.

    bertjax pretrain --config configs/tinybert.py:4 --workdir runs/tinybert_4 \
        --config.objectives.layer_matching.teacher=runs/bert_base \
        --config.data.corpus=corpora/wiki_books

Recipe (sections 3 and 4.2): a student of 4 or 6 layers matches the embeddings, the hidden states
and the attention scores of a pretrained BERT-base, layer m those of layer 3m or 2m, through learned
projections to its width; no tokens are predicted. Sequences of 128 tokens, 3 epochs of English
Wikipedia. The next stages are in `configs/tinybert_glue.py`. The tokenizer is the teacher's.

    size    layers  width  feed-forward  heads   parameters   GLUE (test, as published)
    4            4    312         1,200     12   14,350,248   77.0
    6            6    768         3,072     12   66,955,008   79.4
    tiny         1     64           128      2      308,224   (a demonstration)

BERT-base, the teacher, has a GLUE score of 79.5; the teacher of tiny is `configs/quickstart.py`:

    bertjax pretrain --config configs/quickstart.py --workdir runs/quickstart
    bertjax pretrain --config configs/tinybert.py:tiny --workdir runs/tinybert_tiny \
        --config.objectives.layer_matching.teacher=runs/quickstart

Batch size, learning rate and warmup are those of BERT's pretraining, as in the paper. The
projections have no bias, as in its equations; the published code has biases, and one projection for
embeddings and layers.
"""

from ml_collections import ConfigDict

from configs import common

SIZES = ("tiny", "4", "6")
STUDENTS = {
    # Layers, width, feed-forward width, heads.
    "tiny": (1, 64, 128, 2),
    "4": (4, 312, 1200, 12),
    "6": (6, 768, 3072, 12),
}


def get_config(size: str = "4") -> ConfigDict:
    """Returns the config of a size.

    Raises:
      UserError: Unknown size.
    """
    common.check_argument(size, SIZES)
    layers, width, intermediate, heads = STUDENTS[size]
    config = ConfigDict(common.run(num_train_steps=300_000))
    config.best_metric = "held_out/layer_matching/loss"
    config.model = common.bert_model("base")
    config.model.update(
        size=size,
        num_hidden_layers=layers,
        hidden_size=width,
        intermediate_size=intermediate,
        num_attention_heads=heads,
        output_hidden_states=True,
    )
    config.tokenizer = common.tokenizer()
    config.data = common.data(format="full-sentences", pair="none")
    config.objectives = ConfigDict(
        {"layer_matching": {"teacher": "", "weight": 1.0, "layer_map": ()}}
    )
    config.optimizer = common.adamw(learning_rate=1e-4, warmup_steps=10_000)
    config.mesh = common.mesh()
    return common.shrink_to_demo_student(config) if size == "tiny" else config
