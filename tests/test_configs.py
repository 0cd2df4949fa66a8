"""Every file in configs/: it builds and trains, and its docstring is correct."""

import ast
import functools
import importlib.util
import inspect
import itertools
import json
import math
import pathlib
import re

import jax
import numpy as np
import pytest

from bertjax import build, catalog
from bertjax.config import fingerprint, from_json, load_config, to_json
from bertjax.data.formats import images
from bertjax.errors import UserError
from bertjax.pretrainer import Pretrainer
from bertjax.runs import teachers as runs_teachers
from bertjax.train.checkpoint import trees
from bertjax.train.checkpoint.manager import Checkpoints
from bertjax.train.checkpoint.restore import describe
from bertjax.train.checkpoint.trees import flatten_names
from bertjax.validation import config as validation_config

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "configs"
FIELDS = {"mask_id": 4, "special_ids": (0, 1, 2, 3, 4), "seed": 0}
FIELDS |= {"pad_id": 0, "sep_id": 3}
SHRUNK = {
    "model.vocab_size": "61",
    "model.hidden_size": "24",
    "model.num_hidden_layers": "2",
    "model.num_attention_heads": "3",
    "model.intermediate_size": "40",
    "model.filters": "((1, 4), (3, 6))",
    "model.max_chars_per_word": "12",
    "model.num_highway_layers": "1",
    "model.image_size": "8",
    "model.patch_size": "4",
    "objectives.bidirectional_lm.softmax_size": "0",
    "data.phases": "()",
    "optimizer.restarts": "()",
    "data.max_seq_length": "16",
    "data.batch_size": "8",
    "data.microbatches": "1",
    "num_train_steps": "10",
    "optimizer.learning_rate": "0.01",
    "optimizer.warmup_steps": "1",
}


def arguments(path: pathlib.Path) -> list[str | None]:
    """Possible arguments of a config file: its SIZES, or its TASKS and their RECIPES."""
    spec = importlib.util.spec_from_file_location(f"arguments_of_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    parameters = inspect.signature(module.get_config).parameters.values()
    if not parameters:
        return [None]
    tables = [
        getattr(module, name) for name in ("SIZES", "TASKS", "RECIPES") if hasattr(module, name)
    ]
    assert tables, f"{path.name} takes an argument: list what it knows in SIZES or TASKS"
    named = [",".join(filter(None, words)) for words in itertools.product(*tables)]
    has_default = any(parameter.default is not parameter.empty for parameter in parameters)
    return ([None] if has_default else []) + named


loaded = functools.cache(load_config)
"""For configs without overrides, which no test changes."""


def known(spec: str, fields: dict[str, str]) -> dict[str, str]:
    """The given fields that a recipe has: images have no words, and LSTMs no heads."""
    config = loaded(spec)

    def has(name: str) -> bool:
        section = config
        for part in name.split("."):
            if part not in section:
                return False
            section = section[part]
        return True

    return {name: value for name, value in fields.items() if has(name)}


FILES = [path for path in sorted(FOLDER.glob("*.py")) if path.stem != "common"]
SPECS = [
    f"{path}:{argument}" if argument else str(path)
    for path in FILES
    for argument in arguments(path)
]


def short(spec: str) -> str:
    return spec.removeprefix(f"{FOLDER}/")


@functools.cache
def pretrains(path: str) -> bool:
    """Whether the configs of a file are of pretraining: all of a file are, or none."""
    return "task" not in loaded(next(spec for spec in SPECS if spec.startswith(path)))


PRETRAINING = [spec for spec in SPECS if pretrains(spec.partition(":")[0])]
# Recipes that compile to nearly the same step are one; one of them stands for all.
NO_MATTER = [
    *("*_every", "eval_examples", "num_train_steps", "best_*", "seed", "data.*", "tokenizer.*"),
    *("model.size", "model.*dropout*", "model.*initializer*", "model.max_position_embeddings"),
    *("model.num_pooler_layers", "model.remat", "model.unroll", "optimizer.[!n]*"),
]
RECIPES = {
    fingerprint(load_config(spec, known(spec, SHRUNK).items()), NO_MATTER): spec
    for spec in PRETRAINING
}


def test_there_are_configs():
    assert {"quickstart.py", "bert.py", "bert_base.py"} <= {path.name for path in FILES}
    assert PRETRAINING


@pytest.mark.parametrize("spec", SPECS, ids=short)
def test_a_config_loads_and_has_a_json_round_trip(spec):
    config = load_config(spec)
    assert from_json(to_json(config)) == config
    sections = {"model", "data", "optimizer", "mesh"}
    assert sections <= set(config)
    assert "objectives" in config or "task" in config


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_wrong_argument_is_one_line(path):
    with pytest.raises(UserError) as caught:
        load_config(f"{path}:nosuchthing")
    assert path.name in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_docstring_has_the_command(path):
    commands = re.findall(r"bertjax (\w+) --config (configs/\w+\.py)(\S*)", record(path))
    assert commands, f"{path.name} names no command"
    for verb, config, argument in commands:
        assert verb in catalog.names("commands")
        assert (FOLDER.parent / config).is_file()
        if argument.removeprefix(":").isupper():
            continue
        load_config(f"{FOLDER.parent / config}{argument}")


def record(path: pathlib.Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


FIRST_OF_FILES = {spec.partition(":")[0]: spec for spec in reversed(PRETRAINING)}


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(spec, marks=() if spec in FIRST_OF_FILES.values() else pytest.mark.slow)
        for spec in PRETRAINING
    ],
    ids=short,
)
def test_the_docstring_has_the_parameter_count(spec):
    text = record(pathlib.Path(spec.partition(":")[0]))
    elsewhere = re.search(r"the config of `configs/(\w+\.py):\w+`", text)
    text = record(FOLDER / elsewhere[1]) if elsewhere else text
    assert f"{num_parameters(loaded(spec)):,}" in text


_NUM_PARAMETERS: dict[str, int] = {}
_WITHOUT = re.compile(r"dropout|pdrop|initializer|^(size|precision|remat|unroll|layer_norm_eps)$")
"""Fields of models that do not change the number of parameters."""


def num_parameters(config) -> int:
    """Counted once for configs of the same model and data format."""
    fields = {name: value for name, value in config.model.items() if not _WITHOUT.search(name)}
    key = f"{config.data.format} {fields}"
    if key not in _NUM_PARAMETERS:
        encoder = build.encoder(config.model)
        batch = random_rows(config, batch_size=1, length=8)
        make = functools.partial(encoder.init, train=False)
        shapes = jax.eval_shape(make, jax.random.key(0), batch)
        _NUM_PARAMETERS[key] = trees.num_parameters(shapes["params"])
    return _NUM_PARAMETERS[key]


@pytest.mark.parametrize("spec", PRETRAINING, ids=short)
def test_the_parts_of_a_config_can_be_built(spec):
    config = loaded(spec)
    build.phases(config)
    build.make_optimizer(config)
    rate = build.make_schedule(config)
    assert float(rate(config.optimizer.warmup_steps)) == pytest.approx(
        config.optimizer.learning_rate, rel=1e-3
    )


def trainer_of(config):
    """The trainer of a config, and a dummy batch."""
    teachers = runs_teachers.find(config.objectives)
    fields = FIELDS | {"unk_id": 1, "vocab_size": config.model.get("vocab_size", 0)}
    objectives = runs_teachers.objectives(config.objectives, fields, teachers)
    pretrainer = Pretrainer(build.encoder(config.model), objectives)
    rows = random_rows(config, config.data.batch_size, config.data.max_seq_length)
    phases = build.phases(config)
    mesh = build.make_mesh(config, phases)
    frozen = runs_teachers.frozen_params(teachers)
    return build.trainer(config, pretrainer, mesh, rows, phases=phases, frozen=frozen), rows


@pytest.fixture(scope="session")
def teacher(tmp_path_factory) -> pathlib.Path:
    """A run of a BERT with random weights."""
    run = tmp_path_factory.mktemp("configs") / "teacher"
    spec = f"{FOLDER / 'bert.py'}:tiny"
    config = load_config(spec, known(spec, SHRUNK).items())
    run.mkdir()
    (run / "config.json").write_text(to_json(config))
    with Checkpoints(run) as checkpoints:
        checkpoints.save(trainer_of(config)[0].create_state(), step=1)
    return run


FIRST_OF_MODELS = {loaded(spec).model.name: spec for spec in reversed(RECIPES.values())}


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(spec, marks=() if spec in FIRST_OF_MODELS.values() else pytest.mark.slow)
        for spec in RECIPES.values()
    ],
    ids=short,
)
def test_a_small_version_of_its_step_can_be_traced(spec, teacher):
    """The golden curves cover training."""
    taught = {
        f"objectives.{name}.teacher": str(teacher)
        for name, fields in loaded(spec).objectives.items()
        if "teacher" in fields
    }
    if taught:
        # As the teacher's.
        taught["model.max_position_embeddings"] = "512"
    config = load_config(spec, (known(spec, SHRUNK) | taught).items())
    build.check(config)
    trainer, rows = trainer_of(config)
    state, metrics = jax.eval_shape(trainer.train_step, trainer.shapes, rows)
    assert describe(flatten_names(state)) == describe(flatten_names(trainer.shapes))
    assert {"loss", "gradient_norm"} <= metrics.keys()
    reported = {f"held_out/{name}" for name in metrics if "/" in name}
    declared = {
        name for name in validation_config.held_out_metrics(config) if "perplexity" not in name
    }
    assert reported == declared


def random_rows(config, batch_size: int, length: int) -> dict[str, np.ndarray]:
    """A batch without padding, with all keys that the config's objectives may need."""
    random = np.random.default_rng(0)
    shape = (batch_size, length)
    if "image_size" in config.model:
        return images.Format.random_batch(config.model, shape, random)
    characters = {}
    if "max_chars_per_word" in config.model:
        width = config.model.max_chars_per_word
        characters["char_ids"] = random.integers(0, 256, (*shape, width), np.int16)
    return characters | {
        "input_ids": random.integers(5, config.model.vocab_size, shape, np.int32),
        "segment_ids": random.integers(0, 2, shape, np.int32),
        "attention_mask": np.ones(shape, bool),
        "word_starts": random.random(shape) < 0.8,
        "example_id": np.arange(batch_size, dtype=np.uint32),
        "pair_label": random.integers(0, 2, batch_size, np.int32),
        "memory_mask": np.ones(shape, bool),
        "is_continuation": np.zeros(batch_size, bool),
        **targets(config, shape, random),
    }


def targets(config, shape, random) -> dict[str, np.ndarray]:
    """Targets, if the host provides them."""
    if config.data.format != "source-target":
        return {}
    target_ids = random.integers(5, config.model.vocab_size, shape, np.int32)
    return {"target_ids": target_ids, "target_mask": np.ones(shape, bool)}


NONSENSE = (math.nan, math.inf, -0.5, -2, "no such name")
TEXTS = {
    *("data.corpus", "data.cache", "data.text_field", "data.knowledge", "tokenizer.path"),
    "model.size",
    *("data.train_file", "data.dev_file", "data.test_file"),
    *("data.text", "data.text_pair", "data.negative", "data.label", "data.label_separator"),
    *("task.query_prompt", "task.document_prompt"),
    *("objectives.soft_targets.teacher", "objectives.layer_matching.teacher"),
}
"""Fields that name something which only a later look into a folder can find missing."""
MEANT = {"data.null_threshold": (-0.5, -2), **dict.fromkeys(TEXTS, ("no such name",))}


def fields(section: dict, prefix: str = ""):
    """All fields: the containing section, the name in it, and the dotted name."""
    for name, value in section.items():
        if isinstance(value, dict):
            yield from fields(value, f"{prefix}{name}.")
        else:
            yield section, name, prefix + name


def is_refused(content: dict) -> bool:
    try:
        build.check(from_json(json.dumps(content)))
    except UserError:
        return True
    return False


def test_invalid_values_are_refused_in_every_field():
    """For all configs, but each field once, and those of a model or task once per kind of it."""
    tried = set()
    for spec in SPECS:
        content = json.loads(to_json(loaded(spec)))
        task = content.get("task", {}).get("name")
        kinds = {"model": content["model"].get("name"), "task": task, "data": task}
        for section, name, field in fields(content):
            kind = kinds.get(field.partition(".")[0])
            if (field, kind) in tried:
                continue
            tried.add((field, kind))
            before = section[name]
            for value in NONSENSE:
                section[name] = value
                assert is_refused(content) == (value not in MEANT.get(field, ())), (field, value)
            section[name] = before
    assert len(tried) > 500


def test_all_batch_sizes_but_the_last_have_equally_many_steps_or_tokens():
    """Of 22,000 tokens in rows of 10: 200 steps each of 2, 4 and 5; of 24,000 8,000 tokens each."""
    common = importlib.import_module("configs.common")
    phases = common.batch_size_warmup(1000, 10, (2, 4, 5, 20), 22_000)
    assert phases == ((200, 10, 2), (200, 10, 4), (200, 10, 5), (400, 10, 20))
    phases = common.batch_size_warmup(1000, 10, (2, 4, 5, 20), 24_000, "tokens")
    assert phases == ((400, 10, 2), (200, 10, 4), (160, 10, 5), (240, 10, 20))
    with pytest.raises(UserError, match="got 600 steps in batches smaller than 20, expected fewer"):
        common.batch_size_warmup(500, 10, (2, 4, 5, 20), 22_000)


def test_one_learning_rate_schedule_spans_growing_batches():
    common = importlib.import_module("configs.common")
    config = load_config(f"{FOLDER}/bert.py:tiny", {"num_train_steps": 1000, "data.phases": ()})
    expected = [float(build.make_schedule(config)(step)) for step in (0, 399, 400, 999)]
    with config.unlocked():
        config.data.phases = common.batch_size_warmup(1000, 128, (2, 4, 20), 200_000)
    build.check(config)
    assert [float(build.make_schedule(config)(step)) for step in (0, 399, 400, 999)] == expected
