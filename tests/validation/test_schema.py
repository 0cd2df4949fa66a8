"""Declared constraints of config fields: every field has one, and invalid values are refused."""

import inspect
import json
import math
import pathlib
import subprocess
import sys

import pytest

from bertjax import build, catalog, constraints
from bertjax.config import from_json, load_config, to_json
from bertjax.corpus.text import list_formats
from bertjax.errors import UserError
from bertjax.validation import schema

CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "configs"
SECTIONS = [
    declared
    for _, declared in inspect.getmembers(schema, inspect.isclass)
    if declared.__module__ == schema.__name__ and declared is not schema.PlugIn
]
MODULES = [
    getattr(catalog.load(folder, name, part), kind)
    for folder, part, kind in (
        ("models", None, "Model"),
        ("objectives", None, "Objective"),
        ("tasks", "head", "Task"),
        ("tasks", "dataset", "DataFields"),
        ("train/optimizers", None, "Optimizer"),
        ("train/schedules", None, "Schedule"),
    )
    for name in catalog.names(folder, part)
]


@pytest.mark.parametrize("declared", [*SECTIONS, *MODULES], ids=lambda c: f"{c.__module__}.{c}")
def test_every_field_has_a_declared_constraint(declared):
    fields = constraints.fields_of(declared)
    assert [name for name, hint in fields.items() if not constraints.is_declared(hint)] == []
    shared = constraints.fields_of(schema.Optimizer) if "train" in declared.__module__ else ()
    for relation in getattr(declared, "relations", ()):
        assert set(relation.fields) <= {*fields, *shared}


@pytest.mark.parametrize("module", MODULES, ids=lambda c: f"{c.__module__}.{c}")
def test_every_default_is_valid(module):
    defaults = {
        name: getattr(module, name)
        for name in constraints.fields_of(module)
        if hasattr(module, name)
    }
    constraints.check_section(module, defaults, "")


def with_values(spec: str, values: dict):
    """A config with other values of some dotted fields, of any type."""
    content = json.loads(to_json(load_config(f"{CONFIGS}/{spec}")))
    for field, value in values.items():
        *parents, name = field.split(".")
        section = content
        for parent in parents:
            section = section[parent]
        section[name] = value
    return from_json(json.dumps(content))


BERT, GLUE = "bert.py:tiny", "glue.py:mrpc"


@pytest.mark.parametrize(
    ("spec", "values", "message"),
    [
        (
            BERT,
            {"objectives.mlm.masked_lm_prob": 1.5},
            "config.objectives.mlm.masked_lm_prob: got 1.5, expected a share in (0, 1]",
        ),
        (
            BERT,
            {"objectives.mlm.random_share": 0.3},
            "config.objectives.mlm: got mask_share=0.8, random_share=0.3, expected mask_share + "
            "random_share <= 1; lower one of them",
        ),
        (
            "masked_seq2seq.py:tiny",
            {"objectives.mass.random_share": 0.3},
            "config.objectives.mass: got mask",
        ),
        (BERT, {"data.microbatches": 0}, "config.data.microbatches: got 0, expected an int"),
        (BERT, {"optimizer.learning_rate": -1.0}, "config.optimizer.learning_rate: got -1.0, exp"),
        (BERT, {"optimizer.adam_b1": 2.0}, "config.optimizer.adam_b1: got 2.0, expected a share"),
        (
            BERT,
            {"optimizer.weight_decay": -5.0},
            "config.optimizer.weight_decay: got -5.0, expected a number >= 0",
        ),
        (BERT, {"optimizer.weight_decay": 1e6}, "expected learning_rate * weight_decay < 1"),
        (BERT, {"optimizer.end_learning_rate": 0.5}, "end_learning_rate <= learning_rate; lower"),
        (
            BERT,
            {"optimizer.warmup_steps": 10**7},
            "warmup_steps: got 10000000, expected 0 to num_train",
        ),
        (
            BERT,
            {"best_metric": "held_out/foo"},
            "config.best_metric: got 'held_out/foo', expected one of 'held_out/mlm/loss', "
            "'held_out/mlm/perplexity', 'held_out/mlm/accuracy', 'held_out/sentence_pair/loss', "
            "'held_out/sentence_pair/accuracy'",
        ),
        (BERT, {"best_metric": "mlm/loss"}, "; did you mean 'held_out/mlm/loss'?"),
        (
            BERT,
            {"best_mode": "max"},
            "config.best_mode: got 'max', expected 'min', which is better for held_out/mlm/loss",
        ),
        (BERT, {"optimizer.power": math.nan}, "config.optimizer.power: got nan, expected a number"),
        (BERT, {"log_every": True}, "config.log_every: got True, expected an integer >= 1"),
        (BERT, {"num_train_steps": 1e6}, "config.num_train_steps: got 1000000.0, expected an int"),
        (BERT, {"model.name": "bret"}, "config.model.name: got 'bret', expected one of"),
        (BERT, {"model.precision": "bfloat"}, "did you mean 'bfloat16'?"),
        (BERT, {"model.hidden_size": 100, "model.num_attention_heads": 3}, "nearest: 99, 102"),
        (BERT, {"model.position_offset": 512}, "expected position_offset below max_position"),
        (BERT, {"data.max_seq_lenght": 9}, "no field 'max_seq_lenght' in config.data: did you"),
        (BERT, {"sead": 1}, "no field 'sead' in config: did you mean 'seed'?"),
        (BERT, {"mesh.rules": (("vocab", "tensr"),)}, "config.mesh.rules: got"),
        (BERT, {"mesh.data": 0}, "config.mesh.data: got 0, expected an integer >= 1, or -1"),
        (BERT, {"mesh.attention_kernel": "flash"}, "config.mesh.attention_kernel: got 'flash'"),
        (BERT, {"data.phases": ((10, 8, 8, 0),)}, "config.data.phases: got"),
        (
            BERT,
            {"objectives.mlm.weight": 0, "objectives.sentence_pair.weight": 0.0},
            "nothing is trained: got config.objectives.mlm.weight=0, "
            "config.objectives.sentence_pair.weight=0.0, expected a weight > 0",
        ),
        (
            "distilbert.py:tiny",
            {"objectives.soft_targets.of": "mml"},
            "config.objectives.soft_targets: got mlm before it, expected 'mml'; add one before",
        ),
        (
            BERT,
            {"objectives.rtd": {"weight": 50.0}},
            "config.objectives.rtd: got mlm, sentence_pair before it, expected 'generator'; add",
        ),
        (
            BERT,
            {"objectives": {"sbo": {"weight": 1.0}}, "best_metric": "held_out/sbo/loss"},
            "config.objectives.sbo: got nothing before it, expected 'mlm' or 'unified_lm'; add",
        ),
        ("unilm.py:tiny", {"objectives.unified_lm.shares": (1, 1)}, "expected a share for each of"),
        (
            "elmo.py:tiny",
            {"objectives.bidirectional_lm.softmax_size": 10**6},
            "config.objectives.bidirectional_lm and config.model: got softmax_size=1000000, vocab",
        ),
        (
            "electra.py:small",
            {"objectives.generator.size": 0.45},
            "got size=0.45, hidden_size=256, num_attention_heads=4, expected a share of both for",
        ),
        (
            "unilm.py:tiny",
            {"model.type_vocab_size": 2},
            "got type_vocab_size=2, expected 6 kinds of segments or more; set --config.model.type",
        ),
        ("elmo.py:tiny", {"model.hidden_size": 17}, "expected an even number"),
        ("vit.py:digits", {"model.patch_size": 3}, "to divide into patches of patch_size pixels"),
        (GLUE, {"choose_epoch": "bets"}, "config.choose_epoch: got 'bets', expected one of"),
        (GLUE, {"optimizer.restarts": ((1e-3, 5),)}, "expected () in a fine-tuning, "),
        (GLUE, {"optimizer.warmup_share": 1.5}, "config.optimizer.warmup_share: got 1.5, expected"),
        (GLUE, {"model.hidden_dropout_prob": 1}, "config.model.hidden_dropout_prob: got 1, expect"),
        (GLUE, {"model.hiden_size": 8}, "no field 'hiden_size' in config.model: did you mean"),
        (GLUE, {"task.dataset": "rte+mprc"}, "config.task.dataset: got 'rte+mprc', expected one"),
        (GLUE, {"task.pooler_act": "than"}, "did you mean 'tanh'?"),
        (GLUE, {"task.weight": 0.0}, "nothing is trained: got config.task.weight=0.0, expected"),
        ("squad.py:squad1", {"data.doc_stride": 400}, "lower doc_stride to 317 or less"),
        ("squad.py:squad1", {"data.max_query_length": 384}, "expected room for a context"),
        ("ner.py:conll2003", {"data.scheme": "iob"}, "did you mean 'iob2'?"),
    ],
)
def test_an_invalid_value_is_one_line(spec, values, message):
    with pytest.raises(UserError) as caught:
        build.check(with_values(spec, values))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("section", ["model", "data", "optimizer", "mesh"])
def test_a_config_without_a_section_is_one_line(section):
    config = load_config(f"{CONFIGS}/{BERT}")
    with config.unlocked():
        del config[section]
    with pytest.raises(UserError, match=f"config has no section '{section}'"):
        build.check(config)


@pytest.mark.parametrize(
    "values",
    [
        {"eval_every": 0, "checkpoint_every": 0, "eval_examples": 0, "keep_best": 0},
        {"optimizer.learning_rate": 0, "optimizer.max_grad_norm": 0.0},
        {"objectives.mlm.mask_share": 0.7, "objectives.mlm.random_share": 0.3},
        {"objectives.mlm.masked_lm_prob": 1, "objectives.sentence_pair.weight": 0},
        {"best_metric": "held_out/mlm/accuracy", "best_mode": "max"},
        {"data.short_seq_prob": 0.5, "data.validation_fraction": 0},
        {"mesh.rules": (("vocab", None), ("embed", ("fsdp", "tensor")))},
        {"seed": 2**32 - 1},
        *({"data.text_format": name} for name in list_formats()),
    ],
)
def test_a_valid_value_is_accepted(values):
    build.check(with_values(BERT, values))


def test_the_config_of_a_finished_fine_tuning_is_accepted():
    """Its `config.json` has the whole model, and fields derived from the data."""
    config = with_values(GLUE, {"init": {"name": "runs/x", "encoder": "ab"}, "num_train_steps": 9})
    model = load_config(f"{CONFIGS}/{BERT}").model
    with config.unlocked():
        config.model = model
        config.data.fingerprint = "ab"
        config.optimizer.warmup_steps = 1
    build.check(config)


def test_checking_initialises_no_device():
    """A sweep checks its runs in the parent process, which must not occupy a TPU."""
    code = (
        "import sys; from bertjax import build; from bertjax.config import load_config\n"
        "for spec in sys.argv[1:]: build.check(load_config(spec))\n"
        "from jax._src import xla_bridge; assert not xla_bridge.backends_are_initialized()"
    )
    specs = [f"{CONFIGS}/{spec}" for spec in (BERT, "xlnet.py:tiny", GLUE)]
    subprocess.run([sys.executable, "-c", code, *specs], check=True)


SWEEP = """
from bertjax.config import load_config

def get_config():
    return load_config({spec!r})

def get_runs():
    return [{{"objectives.mlm.masked_lm_prob": share}} for share in (0.15, 1.5)]
"""


@pytest.mark.parametrize(
    ("verb", "words", "message"),
    [
        (
            "pretrain",
            f"{CONFIGS}/{BERT} --config.seed=-1 --workdir OUT",
            "config.seed: got -1, exp",
        ),
        (
            "finetune",
            f"{CONFIGS}/{GLUE} --config.seed=-1 --init no --data no --workdir OUT",
            "config.seed: got -1",
        ),
        ("bench", f"{CONFIGS}/{BERT} --config.data.batch_size=0", "config.data.batch_size: got 0"),
        (
            "plan",
            f"{CONFIGS}/{BERT} --config.data.batch_size=0 --topology v5e:2x2",
            "config.data.batch_size: got 0",
        ),
        (
            "suite glue",
            f"{CONFIGS}/glue.py --config.seed=-1 --init no --data no --tasks rte --workdir OUT",
            "config.seed: got -1",
        ),
        (
            "suite features",
            f"{CONFIGS}/ner.py --config.seed=-1 --init no --data no --workdir OUT",
            "config.seed: got -1",
        ),
        (
            "sweep run",
            "SWEEP --workdir OUT",
            "run masked_lm_prob=1.5: config.objectives.mlm.masked_lm_prob: got 1.5, expected a sh",
        ),
    ],
)
def test_every_verb_checks_before_it_reads_or_writes(verb, words, message, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")  # `plan` sets it
    sweep, out = tmp_path / "sweep.py", tmp_path / "out"
    sweep.write_text(SWEEP.format(spec=f"{CONFIGS}/{BERT}"))
    verb, *command = verb.split()
    argv = [
        *command,
        "--config",
        *words.replace("OUT", str(out)).replace("SWEEP", str(sweep)).split(),
    ]
    with pytest.raises(UserError) as caught:
        catalog.load("commands", verb).main(argv)
    assert message in str(caught.value)
    assert not out.exists()
