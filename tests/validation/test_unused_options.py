"""Options without effect are refused in one line; options with effect are accepted."""

import fnmatch
import itertools
import pathlib

import pytest

from bertjax import catalog
from bertjax.config import load_config, replace_fields, split_overrides
from bertjax.constraints import fields_of
from bertjax.errors import UserError
from bertjax.runs import examples
from bertjax.validation import schema, unused_options

CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "configs"


def load(spec: str, fields: str):
    words = [f"--config.{field}" for field in fields.split(" ")]
    return load_config(f"{CONFIGS}/{spec}", split_overrides(words)[1])


def one_line(caught) -> str:
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("spec", "fields", "message"),
    [
        ("bert.py:tiny", "data.max_seq_length=64", "got 64 with config.data.phases=((900000, 1"),
        ("bert.py:tiny", "data.batch_size=64", "set --config.data.phases='()', or change the"),
        ("bert.py:tiny", "num_train_steps=9 data.phases=((9,8,8,2),) data.microbatches=4", "got 4"),
        ("bert.py:tiny", "tokenizer.path=v tokenizer.lowercase=false", "config.tokenizer.path='v'"),
        ("bert.py:tiny", "data.corpus=c tokenizer.vocab_size=99", "with config.data.corpus='c'"),
        ("bert.py:tiny", "data.corpus=c data.input=(x,)", "config.data.input has no effect: got"),
        ("reversal.py", "data.validation_fraction=0.2", "got 0.2 with config.data.validation_in"),
        ("vit.py:tiny", "data.corpus=c", "with config.data.format='images', expected a format"),
        ("bert.py:tiny", "model.size=large", "pass the size to the config file, as in"),
        ("bert.py:tiny", "optimizer.power=2", "with config.optimizer.schedule='linear'"),
        (
            "bert.py:tiny",
            "optimizer.end_learning_rate=1e-5 optimizer.schedule=constant",
            "config.optimizer.end_learning_rate has no effect: got 1e-05 with",
        ),
        ("ner.py:conll2003,features", "optimizer.layerwise_decay=0.9", "a frozen encoder is not"),
        ("ner.py:conll2003,features", "model.hidden_dropout_prob=0.2", "freeze_encoder=True"),
        ("neobert.py:tiny", "objectives.mlm.hidden_act=relu", "with config.model.name='neobert'"),
        ("glue.py:mrpc", "data.triples_per_entity=3", "set --config.data.knowledge=FILE, or"),
        ("ner.py:conll2003", "task.labels=(O,)", "since they follow from the data; leave"),
    ],
)
def test_an_override_without_effect_is_one_line(spec, fields, message):
    with pytest.raises(UserError) as caught:
        load(spec, fields)
    assert message in one_line(caught)


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        ("bert.py:tiny", "data.phases=() data.max_seq_length=64"),
        ("bert.py:tiny", "data.microbatches=2"),
        ("mosaicbert.py:tiny", "objectives.mlm.hidden_act=relu"),
        ("bert.py:tiny", "data.validation_input=(a,) data.validation_fraction=0"),
        ("bert.py:tiny", "data.corpus=c data.cache=d"),
        ("quickstart.py", "data.corpus=c"),  # the recipe itself names an input
        ("bert.py:tiny", "optimizer.power=2 optimizer.schedule=polynomial"),
        ("bert.py:tiny", "optimizer.schedule=cosine optimizer.end_learning_rate=1e-5"),
        ("glue.py:mrpc", "optimizer.layerwise_decay=0.9 model.hidden_dropout_prob=0.2"),
        ("kbert.py:book_review", "data.triples_per_entity=3"),
    ],
)
def test_an_override_with_effect_is_accepted(spec, fields):
    load(spec, fields)


def test_derived_fields_of_fine_tuning_cannot_be_set(tmp_path):
    config = load_config(f"{CONFIGS}/glue.py:mrpc")
    with config.unlocked():
        config.num_train_steps = 7
    (tmp_path / "config.json").write_text(config.to_json())
    with pytest.raises(UserError) as caught:
        load_config(str(tmp_path / "config.json"), [("num_train_steps", "9")])
    assert "config.num_train_steps has no effect: got 9" in one_line(caught)


def test_every_option_of_the_table_is_a_field():
    sections = {
        "": (schema.PretrainingRun, schema.FineTuningRun),
        "tokenizer": (schema.Tokenizer,),
        "optimizer": (schema.Optimizer,),
        "data": (
            schema.Data,
            *(
                catalog.load("tasks", name, "dataset").DataFields
                for name in catalog.names("tasks", "dataset")
            ),
        ),
        "model": (
            schema.Model,
            *(catalog.load("models", name).Model for name in catalog.names("models")),
        ),
        "objectives.*": tuple(
            catalog.load("objectives", name).Objective for name in catalog.names("objectives")
        ),
        "task": (
            schema.Task,
            *(catalog.load("tasks", name, "head").Task for name in catalog.names("tasks", "head")),
        ),
    }
    known = {
        f"{section}.{field}".lstrip(".")
        for section, declared in sections.items()
        for field in itertools.chain(*map(fields_of, declared))
    }
    known.add("init.name")  # a fine-tuning writes this section
    for rule in unused_options.CONFIG:
        for option in (*rule.options, rule.other):
            assert fnmatch.filter(known, option), option


@pytest.mark.parametrize(
    ("verb", "words", "message"),
    [
        (
            "evaluate",
            "choices --model no --input x --fewshot_input y",
            "--fewshot_input has no effect: got 'y'",
        ),
        (
            "evaluate",
            "choices --model no --input x --seed 2",
            "--seed has no effect: got 2 with --num_fewshot=0",
        ),
        (
            "prepare",
            "--input x --tokenizer t --output o --tfds_data_dir d",
            "--tfds_data_dir has no",
        ),
        ("tokenizer", "train --input x --output o --tfds_data_dir d", "a tfds:NAME:SPLIT among"),
        ("sweep", "status --workdir w --config.seed=3", "--config.seed has no effect on a status"),
        ("plan", "--config c --topology v5e:2x2 --search --mesh data=4", "--mesh has no effect"),
        (
            "plan",
            "--config c --topology v5e:2x2 --search --config.model.remat=full",
            "remat has no",
        ),
        (
            "plan",
            "--config c --topology v5e:2x2 --mesh data=2 --config.mesh.fsdp=2",
            "--config.mesh.fsdp has no effect: got '2' with --mesh='data=2'",
        ),
    ],
)
def test_a_flag_without_effect_is_one_line(verb, words, message):
    with pytest.raises(UserError) as caught:
        catalog.load("commands", verb).main(words.split())
    assert message in one_line(caught)


@pytest.mark.parametrize("field", [{"pair": "order"}, {"short_seq_prob": 0.1}])
@pytest.mark.parametrize("spec", ["reversal.py", "vit.py:tiny", "elmo.py:tiny", "gpt2.py:tiny"])
def test_formats_without_sentences_refuse_sentence_options(spec, field):
    ((name, value),) = field.items()
    config = replace_fields(load_config(f"{CONFIGS}/{spec}"), {f"data.{name}": value})
    with pytest.raises(UserError) as caught:
        examples.check(config)
    assert f"config.data.{name} is not supported with format" in one_line(caught)
