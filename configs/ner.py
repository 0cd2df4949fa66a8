r"""Named entity recognition: `configs/ner.py:conll2003`, `:conll2003,small`, `:conll2003,features`.

Paper: Devlin et al. 2019, section 5.3: words are classified at their first token, without a CRF,
with document context; cased models; as for other tasks batches of 16 or 32, 2 to 5 epochs and a
learning rate of 5e-5, 3e-5 or 2e-5. `small` is for BERT-tiny to BERT-medium, with a learning rate
of 1e-4; `tiny` takes seconds and is for tests.

    bertjax finetune --config configs/ner.py:conll2003 --init runs/bert_cased --data conll2003 \
        --workdir runs/ner
    bertjax finetune --config configs/ner.py:conll2003 --init runs/bert_cased --data conll2003 \
        --workdir runs/ner_document --config.data.document_context=true \
        --config.data.max_seq_length=512
    bertjax finetune --config configs/ner.py:conll2003,features --init runs/bert_cased \
        --data conll2003 --workdir runs/ner_last --config.task.layers=last

`features` (followed by `small` or `tiny`, if used) freezes the encoder and trains a two-layer
BiLSTM on a choice of its layers (`layers/layer_choice.py`); `bertjax suite features` reproduces the
paper's whole table. The paper does not report learning rate, batch size and epochs for these: ours
are 1e-3, 32 and 10.

`--data` is the folder of `train.txt`, `valid.txt` and `test.txt` (or `eng.train`, `eng.testa`,
`eng.testb`): columns, the word first and its tag last, IOB1, IOB2 or BIOES.

Published F1, dev / test: BERT-base 96.4 / 92.4, BERT-large 96.6 / 92.8 (with document context);
dev, of features of BERT-base: 91.0 (embeddings) to 96.1 (the last four layers concatenated).
"""

from ml_collections import ConfigDict

from configs import common, glue

TASKS = ("conll2003",)
FEATURES = "features"
RECIPES = (
    *glue.SIZES_OF_BERT,
    *(",".join(filter(None, (FEATURES, size))) for size in glue.SIZES_OF_BERT),
)


def get_config(argument: str) -> ConfigDict:
    """Returns the config of a task, with the recipe for base-sized encoders by default.

    Raises:
      UserError: Unknown task or recipe.
    """
    task, _, recipe = argument.partition(",")
    common.check_argument(task, TASKS)
    common.check_argument(recipe, RECIPES)
    first, _, size = recipe.partition(",")
    if first == FEATURES:
        return _features(size)
    config = _tagging({"name": "ner", "labels": (), "classifier_dropout": 0.1}, recipe)
    if not recipe:
        config.optimizer.learning_rate = 5e-5
    return config


def _features(size: str) -> ConfigDict:
    section = {"name": "ner_features", "labels": (), "layers": "concat_last_four"}
    section |= {"lstm_layers": 2, "lstm_size": 768, "lstm_dropout": 0.1}
    config = _tagging(section, size)
    # A frozen encoder runs without dropout; these fields have no effect.
    config.model_preferences = ConfigDict()
    config.model.output_hidden_states = True
    config.optimizer.update(learning_rate=1e-3, freeze_encoder=True)
    config.num_train_epochs = 10
    if size == "small":
        config.task.lstm_size = 256
    if size == "tiny":
        config.num_train_epochs = 2
        config.task.update(layers="weighted_sum_all", lstm_size=16)
    return config


def _tagging(section: dict, size: str) -> ConfigDict:
    """Returns the config of a tagging task."""
    config = glue.another_task(section, size)
    config.data.update(
        train_file="",
        dev_file="",
        test_file="",
        scheme="auto",  # or iob1, iob2, bioes
        document_context=False,
    )
    return config
