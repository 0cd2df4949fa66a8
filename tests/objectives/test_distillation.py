"""Distillation objectives: losses by hand, frozen teachers, initialisation of the student."""

import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertjax.errors import UserError
from bertjax.layers import losses
from bertjax.models import xlnet
from bertjax.models.bert import Model
from bertjax.objectives import hidden_cosine, layer_matching, mlm, soft_targets
from bertjax.pretrainer import Encoded, Pretrainer
from bertjax.train.state import TrainState
from bertjax.train.step import make_train_step, mean

V, D, H, F = 61, 12, 3, 10


def model(layers, width=D, **fields):
    sizes = {"vocab_size": V, "hidden_size": width, "num_attention_heads": H}
    sizes |= {"num_hidden_layers": layers, "intermediate_size": F, "max_position_embeddings": 64}
    sizes |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return Model(**{**sizes, "initializer_range": 0.4, **fields})


predict = functools.partial(mlm.Objective, mask_id=4, special_ids=(0, 1, 2, 3), vocab_size=V)


def teacher(layers=4, of="mlm", **fields):
    objectives = {of: predict} if of else {}
    encoder = model(layers, **fields, output_hidden_states=True)
    return functools.partial(Pretrainer, encoder, objectives, parent=None)


def distilbert(layers=2, deep=4, **fields):
    student = model(layers, type_vocab_size=0, num_pooler_layers=0)
    objectives = {
        "mlm": functools.partial(predict, weight=2.0),
        "soft_targets": functools.partial(soft_targets.Objective, teacher(deep), **fields),
        "hidden_cosine": hidden_cosine.Objective,
    }
    return Pretrainer(student, objectives)


def tinybert(layers=2, width=6, deep=4, **fields):
    make = functools.partial(layer_matching.Objective, teacher(deep, of=""), **fields)
    student = model(layers, width, output_hidden_states=True)
    return Pretrainer(student, {"layer_matching": make})


STUDENTS = {"distilbert": distilbert, "tinybert": tinybert}


@pytest.fixture(scope="module")
def batch(make_batch):
    return make_batch(4, 12) | {"segment_ids": jnp.zeros((4, 12), jnp.int32).at[:, 7:].set(1)}


@pytest.fixture(scope="module")
def random_params(batch):
    """Random variables of a pretrainer and its teacher."""

    return functools.cache(lambda name: draw_variables(STUDENTS[name](), batch))


def draw_variables(module, batch):
    """Random variables of a module, without compilation."""
    generator = np.random.default_rng(2)
    boxed = jax.eval_shape(lambda: module.init(jax.random.key(0), batch, train=False))
    return jax.tree.map(
        lambda leaf: jnp.asarray(generator.normal(0, 0.4, leaf.shape), jnp.float32),
        nn.meta.unbox(boxed),
    )


def run_teacher(variables, name, batch, function):
    module = teacher(of="mlm" if name == "soft_targets" else "")()
    params = variables["frozen"][name]["teacher"]["params"]
    return module.apply({"params": params}, batch, method=function)


def test_soft_targets_and_cosine_by_hand(batch, random_params):
    variables, module = random_params("distilbert"), distilbert()
    losses_found, metrics = module.apply(variables, batch, train=False)
    masked = module.apply(variables, batch, train=False, method="prepare")

    def outputs(model, masked):
        encoded = model.encoder(masked, train=False)
        return encoded.sequence, model.mlm.scores(model.encoder, encoded, masked, train=False)[0]

    teacher_outputs, expected = run_teacher(variables, "soft_targets", masked, outputs)
    own, logits = module.apply(variables, masked, method=outputs)
    weights = masked["mlm_weights"]
    divergence = losses.divergence(logits, expected, weights, 2.0)
    assert losses_found["soft_targets"][0] == pytest.approx(float(divergence), rel=1e-4)
    assert losses_found["soft_targets"][1] == weights.sum() == losses_found["mlm"][1]
    agreed = (weights * (logits.argmax(-1) == expected.argmax(-1))).sum()
    assert metrics["soft_targets/agreement"] == (agreed, weights.sum())

    attention_mask = np.asarray(batch["attention_mask"])
    own, teacher_outputs = (
        np.asarray(own)[attention_mask],
        np.asarray(teacher_outputs)[attention_mask],
    )
    lengths = np.linalg.norm(own, axis=-1) * np.linalg.norm(teacher_outputs, axis=-1)
    expected_cosine = (1 - (own * teacher_outputs).sum(-1) / lengths).sum()
    assert losses_found["hidden_cosine"][0] == pytest.approx(expected_cosine, rel=1e-4)
    assert losses_found["hidden_cosine"][1] == attention_mask.sum()


def test_the_teacher_has_no_dropout(batch):
    def prepared(**dropout):
        make = teacher(2, **dropout)
        objectives = {
            "mlm": predict,
            "soft_targets": functools.partial(soft_targets.Objective, make),
        }
        module = Pretrainer(model(2), objectives)
        return module.apply(draw_variables(module, batch), batch, train=True, method="prepare")

    keeping, dropping = prepared(), prepared(hidden_dropout_prob=0.5)
    for name in ("teacher_sequence", "teacher_scores"):
        np.testing.assert_array_equal(keeping[name], dropping[name])


def test_the_default_weights_are_those_published():
    assert distilbert().loss_weights() == {"mlm": 2.0, "soft_targets": 5.0, "hidden_cosine": 1.0}


def heads_of(x, dense):
    return np.einsum("ld,dhk->hlk", x, dense["kernel"]) + np.asarray(dense["bias"])[:, None]


def attention_scores(x, encoder, layer):
    """Q K^T / sqrt(K) of one row in a layer, counted from 1, in float64."""
    attention = encoder["layers"]["block"]["attention"]
    own = jax.tree.map(lambda leaf: np.asarray(leaf)[layer - 1], attention)
    query, key = (heads_of(np.asarray(x, np.float64), own[name]) for name in ("query", "key"))
    return query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])


@pytest.mark.parametrize(("layer_map", "chosen"), [((), (2, 4)), ((3, 1), (3, 1))])
def test_layer_matching_by_hand(layer_map, chosen, batch, random_params):
    variables, module = random_params("tinybert"), tinybert(layer_map=layer_map)
    found, metrics = module.apply(variables, batch, train=False)

    def states_of(model, batch):
        return model.encoder(batch, train=False).hidden_states

    teacher_outputs = run_teacher(variables, "layer_matching", batch, states_of)
    own = module.apply(variables, batch, method=states_of)
    params = variables["params"]
    maps = params["layer_matching"]
    master = variables["frozen"]["layer_matching"]["teacher"]["params"]["encoder"]
    sums = {"embedding": 0.0, "hidden": 0.0, "attention": 0.0}
    for row, length in enumerate(np.asarray(batch["attention_mask"].sum(-1))):

        def error(state, name, expected, row=row, length=length):
            mapped = np.asarray(state)[row, :length] @ maps[f"{name}_projection"]["kernel"]
            return ((mapped - np.asarray(expected)[row, :length]) ** 2).mean(-1).sum()

        sums["embedding"] += error(own[0], "embedding", teacher_outputs[0])
        for layer, other in enumerate(chosen, start=1):
            sums["hidden"] += error(own[layer], "hidden", teacher_outputs[other])
            mine = attention_scores(own[layer - 1][row, :length], params["encoder"], layer)
            expected = attention_scores(teacher_outputs[other - 1][row, :length], master, other)
            sums["attention"] += ((mine - expected) ** 2).mean((0, 2)).sum()
    count = batch["attention_mask"].sum()
    for name, value in sums.items():
        assert metrics[f"layer_matching/{name}_error"][0] == pytest.approx(
            float(value), rel=1e-4
        ), name
    assert found["layer_matching"][0] == pytest.approx(float(sum(sums.values())), rel=1e-4)
    assert found["layer_matching"][1] == count


@pytest.mark.parametrize("name", STUDENTS)
def test_padding_has_no_effect(name, batch, random_params):
    module, attention_mask = STUDENTS[name](), batch["attention_mask"]
    prepared = module.apply(random_params(name), batch, train=False, method="prepare")
    predictions = {key: rows for key, rows in prepared.items() if key.startswith("mlm")}
    expected, _ = module.apply(random_params(name), batch | predictions, train=False)
    other = batch | {"input_ids": jnp.where(attention_mask, batch["input_ids"], 17)}
    found, _ = module.apply(random_params(name), other | predictions, train=False)
    for objective, (value, weight) in expected.items():
        assert found[objective][0] == pytest.approx(float(value), rel=1e-5), objective
        assert found[objective][1] == weight


QUICK_STUDENTS = [
    pytest.param(name, marks=() if name == "distilbert" else pytest.mark.slow) for name in STUDENTS
]


@pytest.mark.parametrize("name", STUDENTS)
@pytest.mark.slow
def test_rows_of_weight_zero_have_no_loss(name, batch, random_params):
    module = STUDENTS[name]()
    first = {key: rows[:3] for key, rows in batch.items()}
    expected, _ = module.apply(random_params(name), first, train=False)
    weight = {"example_weight": jnp.array([1.0, 1, 1, 0])}
    found, _ = module.apply(random_params(name), batch | weight, train=False)
    for objective, sums in expected.items():
        np.testing.assert_allclose(found[objective], sums, rtol=1e-5)


@pytest.mark.parametrize("name", QUICK_STUDENTS)
def test_only_the_student_has_a_gradient(name, batch, random_params):
    module, variables = STUDENTS[name](), random_params(name)
    own = next(reversed(variables["frozen"]))

    def loss(variables):
        return mean(module.apply(variables, batch, train=False)[0][own])

    gradient = jax.jit(jax.grad(loss))(variables)
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(gradient["frozen"]))
    layers = gradient["params"]["encoder"]["layers"]["block"]
    assert np.abs(layers["attention"]["query"]["kernel"]).max(axis=(1, 2, 3)).min() > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDENTS)
def test_accumulation_is_exact(name, batch, random_params):
    """With a teacher that computes each microbatch."""
    variables = random_params(name)
    rows = {key: x for key, x in batch.items() if key != "example_key"}
    rows["example_weight"] = jnp.array([1.0, 0, 1, 1])
    zero, params = jnp.zeros((), jnp.int32), variables["params"]
    start = TrainState(zero, params, optax.identity().init(params), None, zero, zero)

    def gradient(microbatches):
        step = make_train_step(
            STUDENTS[name](), optax.identity(), jnp.ones_like, seed=0, microbatches=microbatches
        )
        state, metrics = jax.jit(step)(start, rows, variables["frozen"])
        return jax.tree.map(jnp.subtract, params, state.params), metrics

    (whole, metrics), (parts, metrics_of_parts) = gradient(1), gradient(2)
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(whole))
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * largest)
    for metric, value in metrics.items():
        assert metrics_of_parts[metric] == pytest.approx(float(value), rel=1e-4), metric


@pytest.mark.parametrize(
    ("layers", "deep", "chosen"),
    [(6, 12, [0, 2, 4, 7, 9, 11]), (2, 4, [0, 3]), (3, 3, [0, 1, 2]), (1, 2, [0])],
)
def test_the_student_is_initialised_from_layers_of_its_teacher(layers, deep, chosen, batch):
    """Six of twelve layers are those of DistilBERT's published code."""
    module = distilbert(layers, deep)
    variables = draw_variables(module, batch)
    params, frozen = variables["params"], variables["frozen"]
    initialised = module.init_params(params, frozen)
    master = frozen["soft_targets"]["teacher"]["params"]
    assert jax.tree.structure(initialised) == jax.tree.structure(params)
    layers = jax.tree.map(lambda leaf: leaf[np.array(chosen)], master["encoder"]["layers"])
    jax.tree.map(np.testing.assert_array_equal, initialised["encoder"]["layers"], layers)
    for name in ("word_embeddings", "position_embeddings", "embeddings"):
        jax.tree.map(
            np.testing.assert_array_equal, initialised["encoder"][name], master["encoder"][name]
        )
    jax.tree.map(np.testing.assert_array_equal, initialised["mlm"], master["mlm"])
    assert set(initialised["encoder"]) == {
        "word_embeddings",
        "position_embeddings",
        "embeddings",
        "layers",
    }
    left = distilbert(2, 4, init_from_teacher=False).init_params(params, frozen)
    assert left is params


def test_a_student_of_another_width_is_not_initialised_from_its_teacher(batch):
    objectives = {name: distilbert().objectives[name] for name in ("mlm", "soft_targets")}
    narrow = Pretrainer(model(2, 6, type_vocab_size=0, num_pooler_layers=0), objectives)
    variables = draw_variables(narrow, batch)
    with pytest.raises(UserError, match="shape mismatch at encoder/embeddings"):
        narrow.init_params(variables["params"], variables["frozen"])


OBJECTIVES = distilbert().objectives
MATCHED = tinybert().objectives


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Pretrainer(model(2, 6), OBJECTIVES), "hidden_size=6, expected the teacher's 12"),
        (
            Pretrainer(model(2), {name: OBJECTIVES[name] for name in ("soft_targets", "mlm")}),
            "requires 'mlm' before it in config.objectives: got",
        ),
        (
            Pretrainer(model(2), {"hidden_cosine": hidden_cosine.Objective}),
            "put soft_targets before it",
        ),
        (
            Pretrainer(xlnet.Model(V, D, 2, H, F, output_hidden_states=True), MATCHED),
            "the model of the student does not return attention scores",
        ),
        (tinybert(3), "got layer_map=(), expected 3 layers"),
        (tinybert(2, layer_map=(0, 4)), "one for each of the student's, from 1 to 4"),
        (Pretrainer(model(2), MATCHED), "set config.model.output_hidden_states to true"),
        (
            Pretrainer(model(2, num_attention_heads=2, output_hidden_states=True), MATCHED),
            "num_attention_heads=2, expected the teacher's 3",
        ),
    ],
)
def test_user_errors_come_before_compilation(module, message, batch):
    with pytest.raises(UserError, match=re.escape(message)):
        jax.eval_shape(lambda: module.init(jax.random.key(0), batch, train=False))


class Peers(nn.Module):
    """A regression objective as the distilled one."""

    weight: float = 0.0
    rewrites_input = False
    predicts_tokens = False
    metrics = ()

    def prepare(self, encoder, batch, *, train):
        return batch

    def scores(self, encoder, encoded, batch, *, train):
        return encoded.sequence[:, 0, :1], jnp.ones(len(encoded.sequence))

    def loss(self, encoder, encoded, batch, *, train):
        return jnp.zeros(()), jnp.ones(()), {}


def test_a_single_score_is_compared_by_its_square(batch):
    make = functools.partial(Pretrainer, model(2), {"rating": Peers}, parent=None)
    objectives = {
        "rating": Peers,
        "soft_targets": functools.partial(
            soft_targets.Objective, make, of="rating", init_from_teacher=False
        ),
    }
    module = Pretrainer(model(1), objectives)
    variables = draw_variables(module, batch)
    found, metrics = module.apply(variables, batch, train=False)
    frozen = variables["frozen"]["soft_targets"]["teacher"]["params"]["encoder"]
    own = model(1).apply({"params": variables["params"]["encoder"]}, batch, train=False)
    teacher_outputs = model(2).apply({"params": frozen}, batch, train=False)
    assert isinstance(own, Encoded)
    expected = jnp.square(own.sequence[:, 0, 0] - teacher_outputs.sequence[:, 0, 0]).sum()
    assert found["soft_targets"] == (pytest.approx(float(expected), rel=1e-5), 4)
    assert metrics == {}
