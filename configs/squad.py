r"""Question answering: `configs/squad.py:TASK`, `:TASK,small`, `:TASK,tiny`; squad1 or squad2.

Paper: Devlin et al. 2019, sections 4.2, 4.3 and appendix A.3: batches of 32, a learning rate of
5e-5 and 3 epochs for SQuAD 1.1; batches of 48, the same learning rate and 2 epochs for SQuAD 2.0;
sequences of 384 tokens, windows with a stride of 128 (the released `run_squad.py`). `small` is for
BERT-tiny to BERT-medium, with a learning rate of 1e-4; `tiny` takes seconds and is for tests.

    bertjax finetune --config configs/squad.py:squad1 --init runs/bert --data squad \
        --workdir runs/squad1
    bertjax finetune --config configs/squad.py:squad2 --init runs/bert --data squad \
        --workdir runs/squad2 --config.data.train_file=my-train.json

`--data` is the folder of `train-v1.1.json` and `dev-v1.1.json` (2.0: `-v2.0`), or of the files
given by `config.data.train_file` and `config.data.dev_file`, in the same layout and any language;
Chinese answers also have a `character_f1`, by which runs are compared. In SQuAD 2.0, the prediction
is "no answer" if the score of [CLS] exceeds that of the best span by more than
`config.data.null_threshold`; with `none`, the threshold is tuned on dev, and reported as such.

Published dev scores, exact match / F1, of BERT-base and -large: 1.1: 80.8 / 88.5 and 84.1 / 90.9;
2.0 (large): 78.7 / 81.9.
"""

from ml_collections import ConfigDict

from configs import common, glue

TASKS = ("squad1", "squad2")
RECIPES = glue.SIZES_OF_BERT


def get_config(argument: str) -> ConfigDict:
    """Returns the config of a task, with the recipe for base-sized encoders by default.

    Raises:
      UserError: Unknown task or recipe.
    """
    task, _, recipe = argument.partition(",")
    common.check_argument(task, TASKS)
    config = glue.another_task({"name": "squad", "n_best_size": 20}, recipe)
    unanswerable = task == "squad2"
    config.num_train_epochs = 2 if unanswerable or recipe == "tiny" else 3
    config.data.update(
        unanswerable=unanswerable,
        train_file="",
        dev_file="",
        test_file="",
        on_mismatch="stop",  # or "skip": questions whose answer is not at its offset
        doc_stride=128,
        max_query_length=64,
        max_answer_length=30,
        null_threshold=None,
    )
    if recipe != "tiny":
        config.data.update(max_seq_length=384, padded_lengths=(128, 192, 256, 320, 384))
        config.data.batch_size = 48 if unanswerable else 32
    else:
        config.data.update(max_seq_length=64, padded_lengths=(64,), max_query_length=24)
        config.data.doc_stride = 16
    if not recipe:
        config.optimizer.learning_rate = 5e-5
    return config
