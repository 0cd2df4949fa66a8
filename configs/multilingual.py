r"""Cross-lingual tasks: `configs/multilingual.py:xnli`, `:mldoc`, `:xnli,small`, `:xnli,tiny`.

XNLI (Conneau et al. 2018) as in `multilingual.md` of google-research/bert: batches of 32, a
learning rate of 5e-5, 2 epochs, sequences of 128 tokens. MLDoc (Schwenk and Li 2018): 1,000
training documents, batches of 32, a learning rate of 2e-5, 3 epochs as in Devlin et al. 2019,
sequences of 256 tokens. `small` is for BERT-tiny to BERT-medium, with a learning rate of 1e-4;
`tiny` takes seconds and is for tests.

    bertjax finetune --config configs/multilingual.py:xnli --init runs/mbert --data xnli \
        --workdir runs/zero_shot
    bertjax finetune --config configs/multilingual.py:xnli --init runs/mbert --data xnli \
        --workdir runs/translate_train --config.data.train_languages="('de',)" \
        --config.data.eval_languages="('de',)"
    bertjax finetune --config configs/multilingual.py:mldoc --init runs/mbert --data mldoc \
        --workdir runs/mldoc

The first trains on English and evaluates all languages (zero-shot transfer), the second trains on
a machine translation. The data of XNLI is the folder of the unpacked XNLI-1.0 and XNLI-MT-1.0, that
of MLDoc has `english.train.1000`, `german.dev`, `german.test` etc. with lines of label, tab, text.
Other names are `--config.data.train_file` etc., where `{language}` stands for a language. The
accuracy of each language and their mean are reported; epochs and seeds are compared by the dev
accuracy of the training languages.

Published XNLI test accuracy of multilingual BERT-base, uncased, trained on English (zero-shot) or
on translations, from the same page:

    language           en    zh    es    de    ar    ur
    zero-shot         81.4  63.8  74.3  70.5  62.1  58.3
    translate-train   81.4  74.2  77.3  75.2  70.5  61.7
"""

from ml_collections import ConfigDict

from bertjax.tasks.multilingual import table
from configs import common, glue

TASKS = table.NAMES
RECIPES = glue.SIZES_OF_BERT


def get_config(argument: str) -> ConfigDict:
    """Returns the config of a benchmark, with the recipe for base-sized encoders by default.

    Raises:
      UserError: Unknown benchmark or recipe.
    """
    task, _, recipe = argument.partition(",")
    common.check_argument(task, TASKS)
    section = {
        "name": "multilingual",
        "dataset": task,
        "classifier_dropout": 0.1,
        "pooler_act": "tanh",
    }
    config = glue.another_task(section, recipe)
    config.data.eval_languages = ()
    {"xnli": _xnli, "mldoc": _mldoc}[task](config, recipe)
    return config


def _xnli(config: ConfigDict, recipe: str) -> None:
    config.data.train_languages = ("en",)
    config.data.train_file = "XNLI-MT-1.0/multinli/multinli.train.{language}.tsv"
    config.data.dev_file = "XNLI-1.0/xnli.dev.tsv"
    config.data.test_file = "XNLI-1.0/xnli.test.tsv"
    if not recipe:
        config.num_train_epochs = 2
        config.optimizer.learning_rate = 5e-5


def _mldoc(config: ConfigDict, recipe: str) -> None:
    config.data.train_languages = ("english",)
    config.data.train_file = "{language}.train.1000"
    config.data.dev_file = "{language}.dev"
    config.data.test_file = "{language}.test"
    if recipe != "tiny":
        config.data.update(max_seq_length=256, padded_lengths=(64, 96, 128, 192, 256))
