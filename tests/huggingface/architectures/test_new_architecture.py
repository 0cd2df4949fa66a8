"""A new architecture is one file in huggingface/architectures/, without other changes.

The one below is unlike those in the repository: the first layer has no norm, layers alternate
between two groups, query, key and value are one torch weight, and the model has no `hidden_act`,
`hidden_dropout_prob`, `type_vocab_size`, `max_position_embeddings`, `remat` or pooler.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bertjax.huggingface.architectures
import bertjax.models
from bertjax import build, catalog
from bertjax import config as configs
from bertjax.errors import UserError
from bertjax.huggingface import architecture, exporting, importing
from bertjax.huggingface.model import read_arrays, write_arrays
from bertjax.tokenizers import tokenizer as tokenizers
from bertjax.train.checkpoint import restore, trees
from bertjax.train.checkpoint.manager import Checkpoints

MODEL = '''
import flax.linen as nn
import jax
import jax.numpy as jnp

from bertjax.constraints import InitStddev, PositiveInt, check_module
from bertjax.layers.dense import ActivationName, PrecisionName, activation
from bertjax.pretrainer import Encoded


class Kernel(nn.Module):
    shape: tuple[int, ...]

    @nn.compact
    def __call__(self):
        return self.param("kernel", nn.initializers.normal(0.5), self.shape)


class Scale(nn.Module):
    shape: tuple[int, ...]

    @nn.compact
    def __call__(self):
        return self.param("scale", nn.initializers.ones, self.shape)


class Blocks(nn.Module):
    """Stacked blocks; without a norm, as the first one, if `has_norm` is false."""

    lead: tuple[int, ...]
    width: int
    heads: int
    has_norm: bool = True

    @nn.compact
    def __call__(self):
        shape = (*self.lead, self.width, self.heads, self.width // self.heads)
        found = {name: Kernel(shape, name=name)() for name in ("query", "key", "value")}
        if self.has_norm:
            found["norm"] = Scale((*self.lead, self.width), name="norm")()
        return found


class Model(nn.Module):
    vocab_size: PositiveInt = 50
    hidden_size: PositiveInt = 6
    num_hidden_layers: PositiveInt = 6
    num_attention_heads: PositiveInt = 2
    hidden_activation: ActivationName = "silu"
    initializer_range: InitStddev = 0.02
    precision: PrecisionName = "float32"
    unroll: PositiveInt = 1

    layer_norm_eps = 1e-5
    embedding_size = property(lambda self: self.hidden_size)
    hidden_act = property(lambda self: self.hidden_activation)

    def setup(self):
        check_module(self)
        size = self.hidden_size, self.num_attention_heads
        self.table = self.param("table", nn.initializers.normal(1.0), (self.vocab_size, size[0]))
        self.first = Blocks((), *size, has_norm=False)
        self.odd = Blocks((self.num_hidden_layers // 2,), *size)
        self.even = Blocks(((self.num_hidden_layers - 1) // 2,), *size)

    def __call__(self, batch, *, train):
        x = self.table[batch["input_ids"]]
        first, odd, even = self.first(), self.odd(), self.even()
        for layer in range(self.num_hidden_layers):
            group = (even, odd)[layer % 2]
            index = (layer - 1) // 2
            block = {name: leaf[index] for name, leaf in group.items()} if layer else first
            h = x * block.get("norm", 1.0)
            names = ("query", "key", "value")
            q, k, v = (jnp.einsum("bld,dhk->blhk", h, block[name]) for name in names)
            x = x + (activation(self.hidden_activation)(q * k) * v).reshape(x.shape)
        return Encoded(x)

    def attend(self, hidden):
        return hidden @ self.table.T
'''

ARCHITECTURE = """
from bertjax.huggingface import config_words
from bertjax.huggingface.config_words import check_fixed, rename
from bertjax.huggingface.name_map import ArrayMap, dense, norm, with_layers

PREFIX = "model"
CLASSES = {
    (): "AlternatingModel",
    ("mlm",): "AlternatingForMaskedLM",
    ("glue",): "AlternatingForSequenceClassification",
}
TIED_ARRAYS = {"decoder.weight": "model.tok_embeddings.weight"}
CLASSIFIER_DROPOUT = {"glue": "classifier_dropout"}
ACT_FIELD = "hidden_activation"
WORDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "hidden_activation": "hidden_activation",
    "initializer_range": "initializer_range",
}
READ = ("classifier_dropout",)
FIXED = config_words.FIXED | {"global_every": 2}
FIXED_BY_HEAD = {}
IRRELEVANT = config_words.IRRELEVANT


def _odd(model):
    return range(1, model["num_hidden_layers"], 2)


def _even(model):
    return range(2, model["num_hidden_layers"], 2)


def _qkv(path, layer):
    paths = tuple(f"{path}/{name}" for name in ("query", "key", "value"))
    return dense(paths, f"{PREFIX}.layers.{layer}.attn.Wqkv", bias=False)


def _group(path):
    scale = norm(f"{path}/norm", f"{PREFIX}.layers.{{layer}}.attn_norm", bias=False)
    return [*_qkv(path, "{layer}"), *scale]


def parts():
    return {
        "encoder": [
            ArrayMap("encoder/table", f"{PREFIX}.tok_embeddings.weight"),
            *_qkv("encoder/first", 0),
            *with_layers(_group("encoder/odd"), _odd),
            *with_layers(_group("encoder/even"), _even),
        ],
        "mlm": [
            *dense("mlm/transform/dense", "head.dense"),
            *norm("mlm/transform/norm", "head.norm"),
            ArrayMap("mlm/bias", "decoder.bias"),
        ],
        "glue": [
            *dense("glue/pooler/dense", "head.dense"),
            *dense("glue/classifier/dense", "classifier"),
        ],
    }


def fields(hf_config, parts):
    check_fixed(hf_config, parts, FIXED, FIXED_BY_HEAD)
    return {"name": "alternating", **rename(hf_config, WORDS)}


def config(model, heads):
    return {word: model[field] for word, field in WORDS.items()} | {"global_every": 2}


def describes(run):
    return run["model"]["name"] == "alternating"
"""
FILES = {
    "models": (bertjax.models, MODEL),
    "huggingface/architectures": (bertjax.huggingface.architectures, ARCHITECTURE),
}
TEXT = ["a line of text that a tokenizer is trained on", "and another one"] * 20


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    """Add a model and its architecture to the two folders."""
    for folder, (package, source) in FILES.items():
        path = tmp_path / "bertjax" / folder / "alternating.py"
        path.parent.mkdir(parents=True)
        path.write_text(source)
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(path.parent)])
    names = catalog.names

    def with_new(folder, part=None):
        return sorted([*names(folder, part), *(["alternating"] if folder in FILES else [])])

    monkeypatch.setattr(catalog, "names", with_new)


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizers.train(TEXT, kind="wordpiece", vocab_size=50)


def write_run(folder, tokenizer, model=(), objectives=None, task=None):
    """Write a run of the model with random parameters, and return these."""
    config = configs.load_config("configs/bert.py:tiny", [])
    computation = {"precision": "float32", "unroll": 1}
    with config.unlocked():
        config.model = {"name": "alternating", "vocab_size": tokenizer.vocab_size} | computation
        config.model.update({"num_hidden_layers": 6, **dict(model)})
        config.objectives = objectives or {}
        if task:
            config.task = task
    shapes = importing.parameter_shapes(importing.pretrainer(config, tokenizer))
    random = np.random.default_rng(0)
    params = {n: random.normal(size=s).astype(np.float32) for n, s in sorted(shapes.items())}
    folder.mkdir()
    (folder / "config.json").write_text(configs.to_json(config))
    tokenizer.save(str(folder / "tokenizer"))
    with Checkpoints(folder) as checkpoints:
        checkpoints.save({"params": jax.tree.map(jnp.asarray, trees.nest(params))}, step=7)
    return params


def export(run, target):
    return exporting.write(exporting.find(str(run)), target)


def params_of(run):
    checkpoint = exporting.find(str(run)).origin.checkpoint
    return trees.flatten_names(restore.load_numpy(checkpoint, "params"))


GLUE = {"name": "glue", "dataset": "rte", "classifier_dropout": 0.2, "pooler_act": "tanh"}
LAYERS = {f"model.layers.{n}.attn.Wqkv.weight" for n in range(6)} | {
    f"model.layers.{n}.attn_norm.weight" for n in range(1, 6)
}
HEADS = {
    "mlm": {"head.dense.weight", "head.dense.bias", "head.norm.weight", "head.norm.bias"}
    | {"decoder.bias"},
    "glue": {"head.dense.weight", "head.dense.bias", "classifier.weight", "classifier.bias"},
}


@pytest.mark.parametrize(
    ("head", "sections", "end", "tag"),
    [
        ("mlm", {"objectives": {"mlm": {}}}, "ForMaskedLM", "fill-mask"),
        ("glue", {"task": GLUE}, "ForSequenceClassification", "text-classification"),
    ],
)
def test_round_trip_of_a_run(head, sections, end, tag, tokenizer, tmp_path):
    params = write_run(tmp_path / "run", tokenizer, **sections)
    made = export(tmp_path / "run", tmp_path / "hf")
    assert (made.class_name, made.left_out) == (f"Alternating{end}", {})
    arrays = read_arrays(tmp_path / "hf")
    assert arrays.keys() == LAYERS | HEADS[head] | {"model.tok_embeddings.weight"}
    key = params["encoder/even/key/kernel"][1].reshape(6, 6)
    np.testing.assert_array_equal(arrays["model.layers.4.attn.Wqkv.weight"][6:12], key.T)
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (config["model_type"], config["global_every"]) == ("alternating", 2)
    assert config.get("classifier_dropout") == (0.2 if head == "glue" else None)
    written = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())
    assert written["model_input_names"] == ["input_ids", "attention_mask"]
    assert f"pipeline_tag: {tag}" in (tmp_path / "hf" / "README.md").read_text()

    importing.write(importing.read(tmp_path / "hf"), tmp_path / "again")
    found = params_of(tmp_path / "again")
    assert found.keys() == params.keys()
    assert all(found[name].tobytes() == array.tobytes() for name, array in params.items())
    export(tmp_path / "again", tmp_path / "back")
    for name in ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "back" / name).read_bytes() == (tmp_path / "hf" / name).read_bytes()


def test_an_imported_model_computes(tokenizer, tmp_path):
    params = write_run(tmp_path / "run", tokenizer, objectives={"mlm": {}})
    export(tmp_path / "run", tmp_path / "hf")
    made = importing.read(tmp_path / "hf")
    batch = {"input_ids": jnp.arange(8).reshape(2, 4), "attention_mask": jnp.ones((2, 4), bool)}
    outputs = [
        build.encoder(made.config.model).apply(
            {"params": trees.nest(each)["encoder"]}, batch, train=False
        )
        for each in (params, made.params)
    ]
    np.testing.assert_array_equal(outputs[0].sequence, outputs[1].sequence)


def test_an_encoder_without_head_has_no_prefix(tokenizer, tmp_path):
    write_run(tmp_path / "run", tokenizer)
    assert export(tmp_path / "run", tmp_path / "hf").class_name == "AlternatingModel"
    names = {name.removeprefix("model.") for name in LAYERS} | {"tok_embeddings.weight"}
    assert read_arrays(tmp_path / "hf").keys() == names
    assert importing.read(tmp_path / "hf").left_out == ()


def test_another_number_of_layers(tokenizer, tmp_path):
    params = write_run(tmp_path / "run", tokenizer, {"num_hidden_layers": 5}, {"mlm": {}})
    export(tmp_path / "run", tmp_path / "hf")
    found = importing.read(tmp_path / "hf").params
    assert all(found[name].tobytes() == array.tobytes() for name, array in params.items())


@pytest.mark.parametrize(
    ("name", "shape", "row"),
    [
        (
            "model.layers.3.attn.Wqkv.weight",
            (17, 6),
            "wrong shape .* got [17, 6], expected [18, 6]",
        ),
        ("model.layers.0.attn_norm.weight", (6,), "unexpected .* got [6]"),
    ],
)
def test_arrays_that_do_not_fit(name, shape, row, tokenizer, tmp_path):
    write_run(tmp_path / "run", tokenizer, objectives={"mlm": {}})
    export(tmp_path / "run", tmp_path / "hf")
    arrays = read_arrays(tmp_path / "hf") | {name: np.zeros(shape, np.float32)}
    write_arrays(tmp_path / "hf", arrays)
    with pytest.raises(UserError) as caught:
        importing.read(tmp_path / "hf")
    _, found = str(caught.value).splitlines()
    kind, _, shapes = row.partition(" .* ")
    assert found.split("  ")[1:] == [kind, name, shapes] or found.endswith(f"{name}  {shapes}")


def test_an_activation_of_the_head_that_transformers_does_not_have(tokenizer, tmp_path):
    write_run(tmp_path / "run", tokenizer, objectives={"mlm": {"hidden_act": "relu"}})
    with pytest.raises(UserError, match="got 'relu', expected 'silu', the only one that Altern"):
        export(tmp_path / "run", tmp_path / "hf")


def test_help_lists_the_architecture(capsys):
    module = catalog.load("commands", "import")
    with pytest.raises(SystemExit):
        module.main(["--help"])
    assert "alternating" in capsys.readouterr().out
    assert "alternating" in architecture.names()
