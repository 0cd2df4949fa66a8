"""Configs: loading, typed overrides, JSON round trips, fingerprints."""

import doctest
import pathlib
import textwrap

import pytest
from ml_collections import config_dict

import bertjax.config
from bertjax.config import (
    apply_overrides,
    differences,
    fingerprint,
    from_json,
    load_config,
    load_runs,
    replace_fields,
    split_overrides,
    to_json,
)
from bertjax.errors import UserError

CONFIG = """
    from ml_collections import ConfigDict
    from {folder} import pieces

    def get_config(size="small"):
        config = ConfigDict()
        config.seed = 0
        config.num_train_steps = 1000
        config.checkpoint_every = config.get_ref("num_train_steps") // 10
        config.model = ConfigDict(pieces.SIZES[size])
        config.tokenizer = ConfigDict(dict(path="", lowercase=None))
        config.objectives = ConfigDict()
        config.objectives.sentence_pair = ConfigDict(dict(weight=1))
        config.objectives.mlm = ConfigDict(dict(masking="token", weight=1.0))
        config.optimizer = ConfigDict(
            dict(name="adamw", schedule="linear", learning_rate=1e-3, restarts=((1e-3, 9),))
        )
        config.mesh = ConfigDict(dict(data=8, rules=(), shard_optimizer=True))
        config.data = ConfigDict(dict(phases=[(900, 128, 256)], cache="a b"))
        return config
"""
PIECES = """
SIZES = {
    "small": dict(name="bert", size="small", hidden_size=128),
    "big": dict(name="bert", hidden_size=1024),
}
"""


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "settings"
    folder.mkdir()
    (folder / "run.py").write_text(textwrap.dedent(CONFIG).format(folder=folder.name))
    (folder / "pieces.py").write_text(PIECES)
    return folder


@pytest.fixture
def path(folder: pathlib.Path) -> str:
    return str(folder / "run.py")


def message(spec: str, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        load_config(spec, split_overrides([f"--config.{item}" for item in overrides])[1])
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_loading_with_the_default_and_with_an_argument(path):
    assert load_config(path).model.hidden_size == 128
    assert load_config(f"{path}:big").model.hidden_size == 1024


def test_a_loaded_config_is_locked_with_tuples_and_ordered_sections(path):
    config = load_config(path)
    assert list(config.objectives) == ["sentence_pair", "mlm"]
    assert config.data.phases == ((900, 128, 256),)
    assert isinstance(config.mesh.rules, tuple)
    with pytest.raises(AttributeError):
        config.model.hidden_sizes = 3


def test_files_of_the_same_name_in_two_folders_are_distinct(folder, path, tmp_path):
    assert load_config(path).model.hidden_size == 128
    other = tmp_path / "other" / "settings"
    other.mkdir(parents=True)
    (other / "run.py").write_text((folder / "run.py").read_text())
    (other / "pieces.py").write_text(PIECES.replace("128", "77"))
    assert load_config(str(other / "run.py")).model.hidden_size == 77
    assert load_config(path).model.hidden_size == 128


def test_a_file_next_to_the_folder_imports_from_it(folder):
    """And a file next to it, which is distinct from files of the same name elsewhere."""
    sweep = "from {0} import run\nimport rates\n\ndef get_runs():\n    return run, rates.RATES\n"
    for number, place in enumerate((folder.parent, folder.parent / "elsewhere")):
        place.mkdir(exist_ok=True)
        (place / "sweep.py").write_text(sweep.format(folder.name))
        (place / "rates.py").write_text(f"RATES = ({number},)")
    module, rates = load_runs(str(folder.parent / "sweep.py"))
    assert (module.get_config("big").model.hidden_size, rates) == (1024, (0,))
    _, rates = load_runs(str(folder.parent / "elsewhere" / "sweep.py"))
    assert rates == (1,)


def test_values_by_field_override_too(path):
    changes = {"objectives.mlm.weight": 0.25, "data.phases": ((7, 64, 8),), "tokenizer.kind": "bpe"}
    config = load_config(path, changes)
    assert config.objectives.mlm.weight == 0.25
    assert config.data.phases == ((7, 64, 8),)
    assert config.tokenizer.kind == "bpe"


@pytest.mark.parametrize(
    ("changes", "warmup", "notes"),
    [
        ({"num_train_steps": 79}, 7, 1),  # 80 of 800 steps
        ({"num_train_steps": 40}, 4, 1),
        ({"num_train_steps": 100}, 80, 0),  # as long as the run allows
    ],
)
def test_a_warmup_longer_than_a_shortened_run_is_scaled(root, changes, warmup, notes):
    logged = []
    config = load_config(f"{root}/configs/quickstart.py", changes, log=logged.append)
    assert (config.optimizer.warmup_steps, len(logged)) == (warmup, notes)
    own = changes | {"optimizer.warmup_steps": 900}
    assert load_config(f"{root}/configs/quickstart.py", own).optimizer.warmup_steps == 900


def test_the_example_in_the_docstring_of_load_config_runs():
    result = doctest.testmod(bertjax.config, extraglobs={"bertjax": bertjax})
    assert (result.attempted, result.failed) == (2, 0)


def test_the_config_of_a_run_is_a_config_file(path, tmp_path):
    config = load_config(path + ":big", [("checkpoint_every", "7"), ("tokenizer.kind", "bpe")])
    written = tmp_path / "config.json"
    written.write_text(to_json(config))
    again = load_config(str(written), [("data.phases", "((9, 8, 8),)")])
    assert differences(config, again) == [
        "config.data.phases: ((900, 128, 256),) became ((9, 8, 8),)"
    ]
    assert again.is_locked
    assert "takes no argument; got 'big'" in message(f"{written}:big")
    written.write_text('{"seed": ')
    assert "is not JSON" in message(str(written))


@pytest.mark.parametrize(
    ("override", "field", "expected"),
    [
        ("seed=7", "seed", 7),
        ("seed=1e3", "seed", 1000),
        ("optimizer.learning_rate=1", "optimizer.learning_rate", 1.0),
        ("optimizer.learning_rate=5e-5", "optimizer.learning_rate", 5e-5),
        ("mesh.shard_optimizer=false", "mesh.shard_optimizer", False),
        ("data.cache=123", "data.cache", "123"),
        ("data.cache=none", "data.cache", "none"),
        ("data.cache=text/*.gz", "data.cache", "text/*.gz"),
        ("mesh.rules=(('embed', ('fsdp', 'data')),)", "mesh.rules", (("embed", ("fsdp", "data")),)),
        ("optimizer.restarts=((1, 5),)", "optimizer.restarts", ((1.0, 5),)),
        ("data.phases=[(5, 6, 7), (8, 9, 10)]", "data.phases", ((5, 6, 7), (8, 9, 10))),
        ("tokenizer.lowercase=true", "tokenizer.lowercase", True),
        ("tokenizer.lowercase=none", "tokenizer.lowercase", None),
        ("objectives.sentence_pair.weight=0.5", "objectives.sentence_pair.weight", 0.5),
        ("num_train_steps=50", "checkpoint_every", 5),
        # Fields that the config file leaves at their default.
        ("model.remat=full", "model.remat", "full"),
        ("model.layer_norm_eps=1e-6", "model.layer_norm_eps", 1e-6),
        ("objectives.mlm.masked_lm_prob=1", "objectives.mlm.masked_lm_prob", 1.0),
        ("optimizer.adam_b2=0.98", "optimizer.adam_b2", 0.98),
        ("optimizer.end_learning_rate=1e-5", "optimizer.end_learning_rate", 1e-5),
        ("tokenizer.character_coverage=0.99", "tokenizer.character_coverage", 0.99),
        ("data.input=a.txt,b.txt", "data.input", ("a.txt", "b.txt")),
    ],
)
def test_a_value_is_converted_to_the_type_of_its_field(path, override, field, expected):
    value = load_config(path, split_overrides([f"--config.{override}"])[1])
    for name in field.split("."):
        value = value[name]
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "model.hiden_size=1",
            "no field 'hiden_size' in config.model: did you mean 'hidden_size'?",
        ),
        ("modle.hidden_size=1", "no field 'modle' in config: did you mean 'model'?"),
        ("model.hidden_size=abc", "config.model.hidden_size: got 'abc', expected an integer >= 1"),
        ("model.hidden_size=1.5", "config.model.hidden_size: got '1.5', expected an integer >= 1"),
        ("model.hidden_size=inf", "config.model.hidden_size: got 'inf', expected an integer >= 1"),
        ("model.hidden_size=none", "config.model.hidden_size: got 'none', expected an integer"),
        ("model.hidden_size=0", "config.model.hidden_size: got 0, expected an integer >= 1"),
        ("optimizer.learning_rate=nan", "config.optimizer.learning_rate: got nan, expected a num"),
        ("mesh.shard_optimizer=1", "config.mesh.shard_optimizer: got '1', expected true or false"),
        ("tokenizer.lowercase=x", "tokenizer.lowercase: got 'x', expected true or false or none"),
        ("optimizer.restarts=3", "config.optimizer.restarts: got '3', expected a tuple"),
        ("data.phases=((1, b, 2),)", "data.phases: got"),
        ("data.phases=(1, 2)", "config.data.phases: got (1, 2), expected a tuple for each el"),
        ("model.name=bret", "config.model.name: got 'bret', expected one of"),
        ("model.num_hidden_group=2", "no field 'num_hidden_group' in config.model: did you mean"),
        ("model.remat=ful", "config.model.remat: got 'ful', expected one of"),
        ("optimizer.adam_b3=1", "no field 'adam_b3' in config.optimizer: did you mean 'adam_b"),
        ("objectives.mlm.weight.x=1", "config.objectives.mlm.weight is a value, not a section"),
        ("model=3", "config.model is a section; set one of its fields: vocab_size, hidden"),
        ("seed.x=3", "config.seed is a value, not a section: it has no fields"),
        ("objectives.mlm.weigth=2", "in config.objectives.mlm: did you mean 'weight'?"),
        ("objectives.nosuchthing.weight=2", "no objective 'nosuchthing'"),
    ],
)
def test_a_misspelled_field_is_refused_with_the_nearest(path, override, expected):
    assert expected in message(path, override)


def test_an_override_of_the_pretrained_model_can_be_removed(root):
    taken_back = split_overrides(["--config.model.hidden_dropout_prob=none"])[1]
    config = load_config(str(root / "configs" / "glue.py:cola"), taken_back)
    assert config.model.to_dict() == {"hidden_dropout_prob": None}
    assert config.model_preferences.hidden_dropout_prob == 0.1


def test_an_objective_can_be_added_and_removed(path):
    argv = [
        "--config.objectives.sentence_pair=none",
        "--config.objectives.rtd.weight=50.0",
        "--config.objectives.causal_lm.positions_at_once=4",
        "--config.objectives.rtd.weight=40.0",
    ]
    config = load_config(path, split_overrides(argv)[1])
    assert config.objectives.to_dict() == {
        "mlm": {"masking": "token", "weight": 1.0},
        "rtd": {"weight": 40.0},
        "causal_lm": {"positions_at_once": 4},
    }
    assert list(config.objectives) == ["mlm", "rtd", "causal_lm"]
    assert "did you mean 'rtd'" in message(path, "objectives.rtdd.weight=1")


def test_a_missing_file_is_refused(folder, path):
    assert "did you mean 'run.py'?" in message(str(folder / "runn.py"))
    assert "there is no folder" in message(str(folder / "nowhere" / "run.py"))
    assert "got 'bert_basis', expected the name of a config" in message("bert_basis")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1", "defines no get_config()"),
        ("def get_config(:\n  pass", "line 1: invalid syntax"),
        ("import nosuchmodule", "line 1: ModuleNotFoundError"),
        ("def get_config():\n  return {}", "returned dict, expected a ConfigDict"),
        ("def get_config():\n  return 1 / 0", "line 2: ZeroDivisionError"),
        ("def get_config(size):\n  pass", "requires an argument"),
        (
            "from ml_collections import ConfigDict\n"
            "def get_config():\n  return ConfigDict(dict(dtype=int))",
            "plain values only: int is a type",
        ),
    ],
)
def test_a_file_without_a_config_is_refused(tmp_path, text, expected):
    (tmp_path / "bad.py").write_text(text)
    assert expected in message(str(tmp_path / "bad.py"))


def test_an_unknown_argument_is_refused(folder, path):
    assert "KeyError: 'huge'" in message(f"{path}:huge")
    (folder / "fixed.py").write_text("def get_config():\n  pass")
    assert "takes no argument; got 'tiny'" in message(f"{folder / 'fixed.py'}:tiny")


def test_json_round_trip(path):
    config = load_config(path)
    again = from_json(to_json(config))
    assert again == config
    assert to_json(again) == to_json(config)
    assert list(again.objectives) == ["sentence_pair", "mlm"]


def test_the_fingerprint_depends_on_content_not_on_the_order_of_fields():
    def build(**fields):
        return config_dict.ConfigDict(fields, sort_keys=False)

    one = build(seed=1, model={"hidden_size": 8, "name": "bert"}, log_every=10)
    two = build(log_every=99, model={"name": "bert", "hidden_size": 8}, seed=1)
    assert fingerprint(one) != fingerprint(two)
    assert fingerprint(one, ["log_every"]) == fingerprint(two, ["log_every"])
    assert fingerprint(one, ["log_every", "model"]) == fingerprint(build(seed=1), ["model"])
    assert fingerprint(one, ["model.name"]) != fingerprint(one, ["model.hidden_size"])
    kept, fewer = build(seed=1, keep_best=3), build(seed=1, keep_best=1)
    assert fingerprint(kept, ["keep_*"]) == fingerprint(fewer, ["keep_*"])
    one, two = ({"mlm": {"teacher": name}, "sbo": {"weight": 1}} for name in "ab")
    one, two = build(objectives=one), build(objectives=two)
    assert fingerprint(one, ["objectives.*.teacher"]) == fingerprint(two, ["objectives.*.teacher"])
    assert fingerprint(one, ["objectives.*.weight"]) != fingerprint(two, ["objectives.*.weight"])
    # A section's name is not a prefix of other names.
    assert fingerprint(build(seed=1, seeds=5), ["seed"]) == fingerprint(build(seeds=5))


def test_fields_that_are_off_are_not_in_the_fingerprint():
    """So that configs of older versions without them are equal."""
    one = fingerprint(config_dict.ConfigDict({"seed": 1}))
    for off in (False, 0, 0.0, "", (), None):
        assert fingerprint(config_dict.ConfigDict({"seed": 1, "new": off})) == one
    assert fingerprint(config_dict.ConfigDict({"seed": 1, "new": 2})) != one
    assert fingerprint(config_dict.ConfigDict({"a": {}})) != fingerprint(config_dict.ConfigDict({}))


def test_the_fingerprint_depends_on_the_order_of_objectives():
    def build(*names):
        objectives = {name: {"weight": 1.0} for name in names}
        return from_json(
            to_json(config_dict.ConfigDict({"objectives": objectives}, sort_keys=False))
        )

    assert fingerprint(build("mlm", "sbo")) != fingerprint(build("sbo", "mlm"))
    assert differences(build("mlm", "sbo"), build("sbo", "mlm")) == [
        "config.objectives: order ['mlm', 'sbo'] became ['sbo', 'mlm']"
    ]


def test_a_modified_copy_keeps_the_order_of_objectives_and_the_lock():
    sections = {"objectives": {"soft": {"weight": 1.0}, "hard": {"weight": 2.0}}}
    config = from_json(to_json(config_dict.ConfigDict(sections, sort_keys=False)))
    copy = replace_fields(config, {"objectives.hard.weight": 3.0})
    assert list(copy.objectives) == ["soft", "hard"]
    assert (copy.objectives.hard.weight, config.objectives.hard.weight) == (3.0, 2.0)
    assert copy.is_locked


def test_differences_are_named_field_by_field(path):
    a = load_config(path)
    b = load_config(f"{path}:big", [("mesh.data", "4")])
    assert sorted(differences(a, b)) == [
        "config.mesh.data: 8 became 4",
        "config.model.hidden_size: 128 became 1024",
        "config.model.size: 'small' became (absent)",
    ]
    assert differences(a, a) == []


def test_overrides_keep_the_lock(path):
    config = load_config(path)
    apply_overrides(config, [("seed", "3")])
    assert config.seed == 3
    assert config.is_locked
