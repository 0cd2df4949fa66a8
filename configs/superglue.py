r"""SuperGLUE: `configs/superglue.py:TASK`, `:TASK,small`, `:TASK,tiny`; boolq, cb, copa ... wsc.

Paper: Wang et al. 2019 (SuperGLUE), section 4.1, BERT baselines: the recipe of Devlin et al. 2019
with a learning rate of 1e-5 and at most 10 epochs, of which the best on dev is reported. Chosen
here: batches of 16; sequences of 256 tokens, or 512 with a passage; 2 epochs of ReCoRD, which has a
sequence for every candidate entity, about a million. The differences between the heads are in
`bertjax/tasks/superglue/table.py`. `small` is for BERT-tiny to BERT-medium, with a learning rate of
1e-4; `tiny` takes seconds and is for tests.

    bertjax finetune --config configs/superglue.py:boolq --init runs/bert --data superglue \
        --workdir runs/boolq
    bertjax suite superglue --init runs/bert --data superglue --workdir runs/superglue

`--data` is the folder of the released archive with `BoolQ/`, `CB/`, `COPA/`, `MultiRC/`, `ReCoRD/`,
`RTE/`, `WiC/` and `WSC/`, each with `train.jsonl`, `val.jsonl` and `test.jsonl`; RTE also predicts
`AX-b/AX-b.jsonl` and `AX-g/AX-g.jsonl`, if they exist.
"""

from ml_collections import ConfigDict

from bertjax.tasks.superglue import table
from configs import common, glue

TASKS = tuple(task.name for task in table.TASKS)
RECIPES = glue.SIZES_OF_BERT
_PASSAGES = ("boolq", "multirc", "record")


def get_config(argument: str) -> ConfigDict:
    """Returns the config of a task, with the recipe for base-sized encoders by default.

    Raises:
      UserError: Unknown task or recipe.
    """
    task, _, recipe = argument.partition(",")
    common.check_argument(task, TASKS)
    section = {
        "name": table.superglue_task(task).head,
        "dataset": task,
        "classifier_dropout": 0.1,
        "pooler_act": "tanh",
    }
    if task == "copa":
        section["num_choices"] = 2
    config = glue.another_task(section, recipe)
    config.choose_epoch = "best"
    if recipe == "tiny":
        return config
    config.num_train_epochs = 2 if task == "record" else 10
    config.data.batch_size = 16
    if task in _PASSAGES:
        config.data.update(max_seq_length=512, padded_lengths=(128, 192, 256, 384, 512))
    else:
        config.data.update(max_seq_length=256, padded_lengths=(32, 64, 96, 128, 192, 256))
    if not recipe:
        config.optimizer.learning_rate = 1e-5
    return config
