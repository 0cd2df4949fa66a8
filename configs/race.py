r"""Multiple choice: `configs/race.py:race`, `:swag`, `:race,small`, `:race,tiny`.

Papers: SWAG as in Devlin et al. 2019, section 4.4: batches of 16, a learning rate of 2e-5, 3
epochs. RACE as in Liu et al. 2019, appendix C: sequences of 512 tokens, batches of 16, a learning
rate of 1e-5, 4 epochs, weight decay 0.1, a warmup of 6%, b2 of 0.98, no clipping. `small` is for
BERT-tiny to BERT-medium, with a learning rate of 1e-4; `tiny` takes seconds and is for tests.

    bertjax finetune --config configs/race.py:race --init runs/roberta --data RACE \
        --workdir runs/race
    bertjax finetune --config configs/race.py:swag --init runs/bert --data swag --workdir runs/swag

`--data` is RACE's folder with `train/middle/1.txt` etc., or SWAG's folder with `train.csv`,
`val.csv` and `test.csv`. Batch sizes are in sequences, four for each question.

Published accuracy: SWAG dev, BERT-base 81.6, BERT-large 86.6; RACE test, BERT-large 72.0 (middle
76.6, high 70.1), RoBERTa-large 83.2 (86.5, 81.3).
"""

from ml_collections import ConfigDict

from configs import common, glue

TASKS = ("race", "swag")
RECIPES = glue.SIZES_OF_BERT
_CHOICES = 4


def get_config(argument: str) -> ConfigDict:
    """Returns the config of a task, with the recipe for base-sized encoders by default.

    Raises:
      UserError: Unknown task or recipe.
    """
    task, _, recipe = argument.partition(",")
    common.check_argument(task, TASKS)
    section = {
        "name": "multiple_choice",
        "dataset": task,
        "num_choices": _CHOICES,
        "classifier_dropout": 0.1,
        "pooler_act": "tanh",
    }
    config = glue.another_task(section, recipe)
    config.data.batch_size = 16 * _CHOICES if recipe != "tiny" else 8 * _CHOICES
    config.data.eval_batch_size = 16 * _CHOICES
    if task == "race" and recipe != "tiny":
        config.num_train_epochs = 4
        config.data.update(max_seq_length=512, padded_lengths=(128, 256, 384, 512))
    if not recipe and task == "race":
        config.optimizer.update(learning_rate=1e-5, weight_decay=0.1, warmup_share=0.06)
        config.optimizer.update(adam_b2=0.98, max_grad_norm=0.0)
    return config
