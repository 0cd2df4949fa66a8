r"""DistilBERT (Sanh et al. 2019): `configs/distilbert.py:SIZE`, base, and tiny.

    bertjax pretrain --config configs/distilbert.py:base --workdir runs/distilbert \
        --config.objectives.soft_targets.teacher=runs/bert_base \
        --config.data.corpus=corpora/wiki_books

Recipe (sections 2 and 3, and the published code): half of the teacher's layers, initialised from
every second one of them; no segments, no pooler, no sentence pairs. The loss is the sum of the loss
on the teacher's soft targets at a temperature of 2, the masked language model and the cosine of the
last hidden states, with weights 5 : 2 : 1. Dynamic masks, batches of 4,000 sequences, 3 epochs of
Wikipedia and BookCorpus, Adam with a learning rate of 5e-4, 5% warmup, b2 of 0.98, no weight decay
and clipping at 5. The tokenizer is the teacher's.

    size    layers  width  heads   parameters   GLUE (dev, as published)
    base         6    768     12   66,362,880   77.0 (its teacher, BERT-base: 79.5)
    tiny         1    128      2      739,200   (a demonstration)

Cost, as published: 90 hours on eight V100 of 16 GB. The teacher of tiny is `configs/quickstart.py`:

    bertjax pretrain --config configs/quickstart.py --workdir runs/quickstart
    bertjax pretrain --config configs/distilbert.py:tiny --workdir runs/distilbert_tiny \
        --config.objectives.soft_targets.teacher=runs/quickstart

Where we differ: the soft targets are those of predicted positions only, which avoids computing the
logits of all other positions; all tokens are masked equally often (published: rare ones more
often). The paper specifies the layers that initialise a student only as
one out of two: here they are spaced evenly from the first to the last; 0, 2, 4, 7, 9, 11 of 12 are
also those of the published code.
"""

from ml_collections import ConfigDict

from configs import common

SIZES = ("tiny", "base")


def get_config(size: str = "base") -> ConfigDict:
    """Returns the config of a size.

    Raises:
      UserError: Unknown size.
    """
    common.check_argument(size, SIZES)
    config = ConfigDict(common.run(num_train_steps=5_000))
    config.model = common.bert_model(size)
    config.model.update(
        num_hidden_layers=config.model.num_hidden_layers // 2,
        type_vocab_size=0,
        num_pooler_layers=0,
    )
    config.tokenizer = common.tokenizer()
    config.data = common.data(format="full-sentences", pair="none")
    config.data.max_seq_length, config.data.batch_size = 512, 4000
    config.objectives = ConfigDict(
        {
            "mlm": common.mlm(),
            "soft_targets": {
                "teacher": "",
                "of": "mlm",
                "weight": 5.0,
                "temperature": 2.0,
                "init_from_teacher": True,
            },
            "hidden_cosine": {"weight": 1.0},
        }
    )
    config.objectives.mlm.weight = 2.0
    config.optimizer = common.adamw(learning_rate=5e-4, warmup_steps=250)
    config.optimizer.update(adam_b2=0.98, weight_decay=0.0, max_grad_norm=5.0)
    config.mesh = common.mesh()
    return common.shrink_to_demo_student(config) if size == "tiny" else config
