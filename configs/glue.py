r"""Fine-tuning on GLUE: `configs/glue.py:TASK`, `:TASK,RECIPE`.

Paper: Devlin et al. 2019, section 4.1 and appendix A.3: batches of 32, 3 epochs, Adam with a linear
decay after a warmup of 10% of the steps, dropout 0.1, a learning rate of 2e-5, 3e-5, 4e-5 or
5e-5.
`small` is the recipe for BERT-tiny to BERT-medium and other encoders narrower than BERT-base (Turc
et al. 2019): 4 epochs, a learning rate of 3e-5, 5e-5, 1e-4 or 3e-4. `tiny` takes seconds and is
for tests. `roberta`, `albert` and `electra` are the recipes of their papers for each task: Liu et
al. 2019, appendix C and the released code; Lan et al. 2020, table 14, with steps rounded to
epochs; Clark et al. 2020, appendix B, with the learning rate of the base model (small:
3e-4; large: 5e-5, and a layerwise decay of 0.9). Where these differ: `roberta` decays no biases and
LayerNorms and has a warmup of 6% for QQP as well (released code: all parameters, 25%); `electra`
has each pair of sentences once (released code: MRPC and STS-B also in reverse).

    bertjax finetune --config configs/glue.py:mrpc --init runs/bert --data glue --workdir runs/mrpc
    bertjax finetune --config configs/glue.py:rte+mrpc --init runs/bert --data glue \
        --workdir runs/rte_and_mrpc
    bertjax finetune --config configs/glue.py:cola,small --init runs/mini --data glue \
        --workdir runs/cola --seeds 5

Tasks joined by a plus sign are trained together, with one encoder and a head per task, on batches
of one task each in random order (MT-DNN, Liu et al. 2019, algorithm 1; the heads for pairs differ).

Published dev scores of BERT-base at this recipe with a learning rate of 2e-5 (MRPC and WNLI with 5
epochs), from the text classification example of Hugging Face transformers, and test scores of
BERT-mini:

    task   metric               BERT-base, cased, dev   BERT-mini, uncased, test
    cola   Matthews             56.5                     0.0
    sst2   accuracy             92.3                    85.9
    mrpc   F1 / accuracy        88.9 / 84.1             81.1 / 71.8
    stsb   Pearson / Spearman   88.6 / 88.5             75.4 / 73.3
    qqp    accuracy / F1        90.7 / 87.5             86.2 / 66.4
    mnli   matched / mismatched 83.9 / 84.1             74.8 / 74.3
    qnli   accuracy             90.7                    84.1
    rte    accuracy             65.7                    57.9
    wnli   accuracy             56.3                    62.3

Cost: an epoch of MRPC is 115 steps, of SST-2 2,105, of MNLI 12,272.
"""

from ml_collections import ConfigDict

from bertjax.tasks.glue import table
from configs import common

TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
SIZES_OF_BERT = ("", "small", "tiny")
RECIPES = (*SIZES_OF_BERT, "roberta", "albert", "electra")

_ROBERTA = {
    # Learning rate and batch size.
    "cola": (1e-5, 16),
    "sst2": (1e-5, 32),
    "mrpc": (1e-5, 16),
    "stsb": (2e-5, 16),
    "qqp": (1e-5, 32),
    "mnli": (1e-5, 32),
    "qnli": (1e-5, 32),
    "rte": (2e-5, 16),
    "wnli": (2e-5, 16),
}
_ALBERT = {
    # Learning rate, batch size, dropout of the encoder, epochs, share of steps for the warmup.
    "cola": (1e-5, 16, 0.0, 10, 0.06),
    "sst2": (1e-5, 32, 0.0, 10, 0.06),
    "mrpc": (2e-5, 32, 0.0, 7, 0.25),
    "stsb": (2e-5, 16, 0.0, 10, 0.06),
    "qqp": (5e-5, 128, 0.1, 5, 0.07),
    "mnli": (3e-5, 128, 0.0, 3, 0.1),
    "qnli": (1e-5, 32, 0.0, 10, 0.06),
    "rte": (3e-5, 32, 0.1, 10, 0.25),
    "wnli": (2e-5, 16, 0.1, 50, 0.125),
}


def get_config(argument: str) -> ConfigDict:
    """Returns the config of a task, with the recipe for base-sized encoders by default.

    Raises:
      UserError: Unknown task or recipe.
    """
    tasks, _, recipe = argument.partition(",")
    for task in tasks.split("+"):
        common.check_argument(task, tuple(row.name for row in table.TASKS))
    common.check_argument(recipe, RECIPES)
    if recipe in SIZES_OF_BERT:
        return finetuning(tasks, recipe)
    common.check_argument(tasks, TASKS)
    config = finetuning(tasks, "")
    {"roberta": _roberta, "albert": _albert, "electra": _electra}[recipe](config, tasks)
    return config


def _roberta(config: ConfigDict, task: str) -> None:
    rate, config.data.batch_size = _ROBERTA[task]
    config.num_train_epochs = 10
    config.optimizer.update(learning_rate=rate, warmup_share=0.06)
    config.optimizer.update(weight_decay=0.1, adam_b2=0.98, max_grad_norm=0.0)
    config.data.update(max_seq_length=512, padded_lengths=_LONG)


def _albert(config: ConfigDict, task: str) -> None:
    rate, config.data.batch_size, dropout, epochs, warmup = _ALBERT[task]
    config.num_train_epochs = epochs
    config.model_preferences.update(
        hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout
    )
    config.optimizer.update(learning_rate=rate, warmup_share=warmup)
    config.data.update(max_seq_length=512, padded_lengths=_LONG)


def _electra(config: ConfigDict, task: str) -> None:
    config.num_train_epochs = 10 if task in ("rte", "stsb") else 3
    config.task.pooler_act = "gelu"
    config.optimizer.update(learning_rate=1e-4, layerwise_decay=0.8, weight_decay=0.0)


def another_task(section: dict, recipe: str) -> ConfigDict:
    """Returns the config of a task other than GLUE, with its own task section and no graph.

    Raises:
      UserError: Unknown recipe.
    """
    config = finetuning("", recipe)
    config.task = ConfigDict(section)
    for absent in ("knowledge", "triples_per_entity"):
        del config.data[absent]
    return config


_LONG = (32, 64, 96, 128, 192, 256, 384, 512)


def finetuning(task: str, recipe: str) -> ConfigDict:
    """Returns the config of any task with one of the recipes.

    Raises:
      UserError: Unknown recipe.
    """
    common.check_argument(recipe, SIZES_OF_BERT)
    config = ConfigDict()
    config.seed = 0
    config.num_train_epochs = {"": 3, "small": 4, "tiny": 2}[recipe]
    config.choose_epoch = "last"  # or "best", by the mean of the dev metrics; reported as such
    config.max_train_examples = 0  # random subset of the training examples; 0: all
    config.log_every = 50
    config.checkpoint_every = 1000  # steps, and after each epoch
    config.keep_checkpoints = False  # after a seed is finished
    config.max_skipped_in_a_row = 5
    config.watchdog_minutes = 20.0  # without a step, until the stacks of all threads are printed
    config.task = ConfigDict({"name": "glue", "dataset": task, "classifier_dropout": 0.1})
    config.task.pooler_act = "tanh"  # of the new pooler, if the encoder has none
    # Overrides of fields of the pretrained model, which must have them.
    config.model = ConfigDict()
    # Overrides that are ignored if the pretrained model does not have the field.
    config.model_preferences = ConfigDict(
        {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    )
    config.data = ConfigDict(
        {
            "max_seq_length": 128,
            "batch_size": 32,
            "microbatches": 1,
            "eval_batch_size": 64,
            "padded_lengths": (16, 32, 48, 64, 96, 128),
            # 1: a uniform shuffle; N: batches sorted by length in groups of N, which is faster.
            "batches_per_group": 1,
            "knowledge": "",  # a graph (.spo) to insert in texts: configs/kbert.py
            "triples_per_entity": 2,
        }
    )
    config.optimizer = common.adamw(learning_rate=2e-5, warmup_steps=0)
    config.optimizer.warmup_share = 0.1  # of all steps, in place of warmup_steps
    config.optimizer.layerwise_decay = 1.0  # below 1: smaller learning rates for lower layers
    del config.optimizer.warmup_steps, config.optimizer.restarts
    config.mesh = common.mesh()
    if recipe == "small":
        config.optimizer.learning_rate = 1e-4
    if recipe == "tiny":
        config.optimizer.learning_rate = 1e-3
        config.max_train_examples = 64
        config.data.update(max_seq_length=32, padded_lengths=(16, 32), batch_size=8)
    return config
