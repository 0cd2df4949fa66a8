"""The training step: exact accumulation, any mesh, no [B L V], skipped updates, evaluation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertjax.models.bert import Model
from bertjax.objectives import mlm, sentence_pair
from bertjax.pretrainer import Pretrainer
from bertjax.train import optimizer, sharding
from bertjax.train.accumulation import split_microbatches
from bertjax.train.state import create, unbox
from bertjax.train.step import example_keys, make_eval_step, make_train_step, mean
from bertjax.train.trainer import make_trainer

B, L, V, D, N, H, F = 16, 14, 36, 16, 2, 4, 24
RATE = 0.1


def pretrainer(dropout=0.0, vocab_size=V):
    sizes = {"vocab_size": vocab_size, "hidden_size": D, "num_hidden_layers": N}
    sizes |= {"num_attention_heads": H, "intermediate_size": F, "max_position_embeddings": L}
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    model = Model(**sizes, **rates, initializer_range=0.3)
    predict = functools.partial(
        mlm.Objective, mask_id=4, special_ids=(0, 2, 3), vocab_size=vocab_size
    )
    return Pretrainer(
        model,
        {"mlm": predict, "sentence_pair": lambda: sentence_pair.Objective(weight=0.5)},
    )


@pytest.fixture(scope="module")
def batch():
    """Rows of very different lengths; the fourth and the twelfth have weight 0."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(4, L + 1, B)
    attention_mask = np.arange(L) < lengths[:, None]
    ids = np.where(attention_mask, generator.integers(5, V, (B, L)), 0)
    ids[:, 0] = 2
    ids[np.arange(B), lengths - 1] = 3
    weight = np.ones(B, np.float32)
    weight[[3, 11]] = 0
    return {
        "input_ids": ids.astype(np.int32),
        "segment_ids": (np.arange(L) > lengths[:, None] // 2).astype(np.int32),
        "attention_mask": attention_mask,
        "pair_label": generator.integers(0, 2, B).astype(np.int32),
        "example_id": np.arange(B, dtype=np.int32),
        "example_weight": weight,
    }


@pytest.fixture(scope="module")
def keyed(batch):
    return batch | {"example_key": example_keys(0, jnp.asarray(0), B)}


def descent():
    """Gradient descent with a learning rate of 1, so that parameters show the gradient."""
    return optax.identity(), lambda step: jnp.asarray(1.0)


@pytest.fixture(scope="module")
def start(keyed):
    direction, _ = descent()
    return jax.jit(lambda batch: unbox(create(pretrainer(), direction, batch, 0)))(keyed)


def close(got, expected, relative=1e-5, absolute=1e-7):
    """Equal up to a share of the largest value of each array, or to float32 noise around zero."""
    expected = jax.tree.leaves(expected)
    for (path, mine), other in zip(jax.tree_util.tree_leaves_with_path(got), expected, strict=True):
        mine, other = np.asarray(mine), np.asarray(other)
        error = np.abs(mine - other).max()
        assert error <= relative * np.abs(other).max() + absolute, jax.tree_util.keystr(path)


@functools.cache
def compiled(microbatches):
    return jax.jit(make_train_step(pretrainer(), *descent(), seed=0, microbatches=microbatches))


def step_of(microbatches, start, batch):
    state, metrics = compiled(microbatches)(start, batch)
    return jax.tree.map(jnp.subtract, start.params, state.params), metrics


@pytest.fixture(scope="module")
def whole(start, batch):
    """Gradient and metrics of the batch in one microbatch."""
    return step_of(1, start, batch)


def test_the_loss_is_the_weighted_sum_of_means(whole, start, keyed):
    gradient, metrics = whole

    def loss(params, batch):
        losses, _ = pretrainer().apply({"params": params}, batch, train=False)
        total = mean(losses["mlm"]) + 0.5 * mean(losses["sentence_pair"])
        return total, losses

    value_and_gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (total, losses), expected = value_and_gradient(start.params, keyed)
    close(gradient, expected)
    assert metrics["loss"] == pytest.approx(float(total), rel=1e-5)
    assert losses["sentence_pair"][1] == B - 2
    for name, (value, weight) in losses.items():
        assert metrics[f"{name}/loss"] == pytest.approx(float(value / weight), rel=1e-5)
    assert set(metrics) == {
        *("loss", "mlm/loss", "mlm/accuracy", "sentence_pair/loss", "sentence_pair/accuracy"),
        *("learning_rate", "gradient_norm", "skipped"),
    }
    assert metrics["gradient_norm"] == pytest.approx(float(optax.tree.norm(expected)), rel=1e-5)


def test_accumulation_is_exact(whole, start, batch):
    """Of 8 microbatches, one has weight 0; the others have 2 to 4 predictions."""
    gradient, metrics = step_of(8, start, batch)
    close(gradient, whole[0])
    for name, value in whole[1].items():
        assert metrics[name] == pytest.approx(float(value), rel=1e-5), name


@pytest.mark.slow
def test_accumulation_has_the_dropout_masks_of_the_whole_batch(start, batch):
    def step(microbatches):
        made = pretrainer(dropout=0.3)
        return jax.jit(make_train_step(made, *descent(), seed=0, microbatches=microbatches))

    (state, metrics), (whole, expected) = (step(n)(start, batch) for n in (2, 1))
    close(state.params, whole.params, relative=1e-4)
    assert metrics["loss"] == pytest.approx(float(expected["loss"]), rel=1e-5)


@pytest.mark.slow
def test_a_mean_of_means_over_microbatches_would_be_wrong(whole, start, keyed):
    parts = jax.tree.map(lambda leaf: leaf[:, 0], split_microbatches(keyed, 4, 1))

    def loss(params, part):
        losses, _ = pretrainer().apply({"params": params}, part, train=False)
        return mean(losses["mlm"]) + 0.5 * mean(losses["sentence_pair"])

    gradients = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(start.params, parts)
    naive = jax.tree.map(lambda leaf: leaf.mean(axis=0), gradients)
    with pytest.raises(AssertionError):
        close(naive, whole[0], relative=1e-2)


SEQUENCE = "data, tensor, sequence"
MESHES = {
    "one": {},
    "data, tensor": {"data": 4, "tensor": 2},
    "data, fsdp, tensor": {"data": 2, "fsdp": 2, "tensor": 2},
    SEQUENCE: {"data": 2, "tensor": 2, "sequence": 2},
}
QUICK = "data, fsdp, tensor"
"""The mesh of the default run."""


def trainer_on(sizes, batch, vocab_size=V, **more):
    sizes = dict.fromkeys(sharding.MESH_AXES, 1) | sizes
    mesh = sharding.make_mesh(sizes, jax.devices()[: np.prod(list(sizes.values()))])
    return make_trainer(
        pretrainer(dropout=0.1, vocab_size=vocab_size),
        # An epsilon above the noise of float32, which Adam would else scale up to whole steps.
        optimizer.make("adamw", adam_eps=1e-3),
        lambda step: jnp.asarray(RATE),
        batch,
        mesh=mesh,
        rules=sharding.RULES,
        seed=0,
        microbatches=2,
        **more,
    )


@pytest.fixture(scope="module")
def two_steps(batch, start):
    """Run two steps on a mesh: the trainer, the last state, the metrics of both steps."""
    state = start.replace(opt_state=optimizer.make("adamw").init(start.params))

    @functools.cache
    def run(name, **more):
        trainer, metrics = trainer_on(MESHES[name], batch, **more), []
        # A copy, because the step gives its state away.
        after = jax.device_put(
            jax.device_get(state), jax.tree.map(lambda leaf: leaf.sharding, trainer.shapes)
        )
        for _ in range(2):
            after, measured = trainer.train_step(after, sharding.to_global(batch, trainer.mesh))
            metrics.append(jax.device_get(measured))
        return trainer, after, metrics

    return run


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == QUICK else pytest.mark.slow)
        for name in MESHES
        if name != "one"
    ],
)
def test_the_mesh_does_not_change_the_mathematics(name, two_steps, capfd):
    """With dropout: its bits do not depend on the mesh."""
    _, alone, metrics_alone = two_steps("one")
    _, state, metrics = two_steps(name)
    # The compiler warns if it must gather an array that no rule shards well.
    assert "rematerialization" not in capfd.readouterr().err
    for measured, expected in zip(metrics, metrics_alone, strict=True):
        assert measured.keys() == expected.keys()
        for metric, value in expected.items():
            assert measured[metric] == pytest.approx(value, rel=1e-5, abs=1e-7), metric
    assert int(state.step) == 2
    # The biases of keys have a gradient of zero, and Adam an epsilon of 1e-3 to divide noise by.
    close(state.params, alone.params, relative=1e-4, absolute=5e-6)
    close(state.opt_state, alone.opt_state, relative=1e-4)


@pytest.mark.slow
def test_a_sharded_optimizer_changes_only_placement(two_steps):
    _, alone, metrics_alone = two_steps("one")
    _, state, metrics = two_steps("data, tensor", shard_optimizer=True)
    assert metrics[1]["loss"] == pytest.approx(metrics_alone[1]["loss"], rel=1e-5)
    close(state.params, alone.params, relative=1e-4, absolute=5e-6)
    close(state.opt_state, alone.opt_state, relative=1e-4)

    def shard_shapes(tree):
        kernel = tree["encoder"]["layers"]["block"]["attention"]["query"]["kernel"]
        return {shard.data.shape for shard in kernel.addressable_shards}

    assert shard_shapes(state.params) == {(N, D, H // 2, D // H)}
    assert shard_shapes(state.opt_state[1].mu) == shard_shapes(state.opt_state[1].nu)
    assert shard_shapes(state.opt_state[1].mu) == {(N, D // 4, H // 2, D // H)}


@pytest.mark.slow
def test_gradients_reduced_in_bfloat16_are_rounded(two_steps):
    _, exact, before = two_steps("data, tensor")
    _, state, metrics = two_steps("data, tensor", grad_reduce_in_bf16=True)
    norm, expected = metrics[0]["gradient_norm"], before[0]["gradient_norm"]
    assert 1e-6 * expected < abs(norm - expected) < 4 * 2**-9 * expected
    close(state.opt_state[1].mu, exact.opt_state[1].mu, relative=4 * 2**-8)


def test_parameters_are_initialised_equally_on_any_mesh(two_steps, start):
    created = two_steps("data, fsdp, tensor")[0].create_state()
    jax.tree.map(np.testing.assert_array_equal, created.params, start.params)


def test_dropout_was_enabled(two_steps, whole):
    """Without dropout, the same masks and parameters have another loss."""
    assert abs(two_steps("one")[2][0]["loss"] - whole[1]["loss"]) > 1e-3


@pytest.mark.parametrize(
    ("name", "query", "words"),
    [
        ("one", (N, D, H, D // H), (V, D)),
        pytest.param(SEQUENCE, (N, D, H // 2, D // H), (V // 2, D), marks=pytest.mark.slow),
        ("data, fsdp, tensor", (N, D // 2, H // 2, D // H), (V // 2, D // 2)),
    ],
)
def test_shardings_are_kept_by_a_step(name, query, words, two_steps):
    trainer, state, _ = two_steps(name)
    for tree in (state.params, state.opt_state[1].mu, state.opt_state[1].nu):
        encoder = tree["encoder"]
        for leaf, shape in (
            (encoder["layers"]["block"]["attention"]["query"]["kernel"], query),
            (encoder["word_embeddings"]["embedding"], words),
        ):
            assert {shard.data.shape for shard in leaf.addressable_shards} == {shape}
    for leaf, expected in zip(jax.tree.leaves(state), jax.tree.leaves(trainer.shapes), strict=True):
        assert leaf.sharding.is_equivalent_to(expected.sharding, leaf.ndim)


def test_an_odd_vocabulary_is_replicated(batch):
    trainer = trainer_on({"tensor": 2}, batch, vocab_size=V + 1)
    words = trainer.shapes.params["encoder"]["word_embeddings"]["embedding"]
    assert words.sharding.shard_shape(words.shape) == (V + 1, D)
    query = trainer.shapes.params["encoder"]["layers"]["block"]["attention"]["query"]["kernel"]
    assert query.sharding.shard_shape(query.shape) == (N, D, H // 2, D // H)


def equations(jaxpr):
    """All equations of a program, also inside loops and calls."""

    def is_program(value):
        return hasattr(value, "eqns") or hasattr(value, "jaxpr")

    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=is_program):
            if is_program(value):
                yield from equations(getattr(value, "jaxpr", value))


def shapes_in(function, *arguments):
    program = jax.make_jaxpr(function)(*arguments)
    return {
        variable.aval.shape
        for equation in equations(program.jaxpr)
        for variable in (*equation.invars, *equation.outvars)
        if hasattr(variable.aval, "shape")
    }


@pytest.mark.parametrize("microbatches", [1, 2])
def test_logits_are_computed_for_predicted_positions_only(microbatches, start, batch):
    step = make_train_step(pretrainer(), *descent(), seed=0, microbatches=microbatches)
    evaluation = make_eval_step(pretrainer(), seed=0)
    rows, predictions = B // microbatches, 3
    for shapes, size in (
        (shapes_in(jax.jit(step), start, batch), rows),
        (shapes_in(jax.jit(evaluation), start.params, batch), B),
    ):
        assert (size, predictions, V) in shapes
        with_vocabulary = {shape for shape in shapes if V in shape}
        assert not [shape for shape in with_vocabulary if np.prod(shape) >= size * L * V]
        assert not [shape for shape in with_vocabulary if L in shape]


def test_activations_are_placed_along_the_sequence_axis(batch):
    trainer = trainer_on(MESHES["data, tensor, sequence"], batch)
    rows = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in batch.items()}
    program = jax.make_jaxpr(trainer.train_step)(trainer.shapes, rows)
    specs = [
        equation.params["sharding"].spec
        for equation in equations(program.jaxpr)
        if equation.primitive.name == "sharding_constraint"
    ]
    assert any("sequence" in jax.tree.leaves(tuple(spec)) for spec in specs)


def test_masks_change_from_step_to_step(whole, start, batch):
    again = step_of(1, start, batch)[1]
    assert again["mlm/loss"] == whole[1]["mlm/loss"]
    moved = step_of(1, start.replace(step=jnp.asarray(1, jnp.int32)), batch)[1]
    assert moved["mlm/loss"] != whole[1]["mlm/loss"]
    assert moved["sentence_pair/loss"] != whole[1]["sentence_pair/loss"]


@pytest.fixture(scope="module")
def evaluate(start):
    step = jax.jit(make_eval_step(pretrainer(), seed=0))
    return lambda batch: jax.device_get(step(start.params, batch))


def padded(batch, rows):
    """Rows, padded with copies of the first row that have weight 0."""
    filled = np.concatenate([rows, np.full(B - len(rows), rows[0])])
    part = {name: values[filled] for name, values in batch.items()}
    part["example_weight"] = part["example_weight"] * (np.arange(B) < len(rows))
    return part


def test_every_evaluation_predicts_the_same_tokens(evaluate, batch):
    expected = evaluate(batch)
    assert evaluate(batch) == expected
    order = np.random.default_rng(1).permutation(B)
    turned = evaluate({name: values[order] for name, values in batch.items()})
    for name, sums in expected.items():
        np.testing.assert_allclose(turned[name], sums, rtol=1e-5)
    moved = evaluate(batch | {"example_id": batch["example_id"] + 100})
    assert moved["mlm/loss"][0] != expected["mlm/loss"][0]


def test_sums_add_up_over_batches_of_which_the_last_is_short(evaluate, batch):
    expected = evaluate(batch)
    parts = [evaluate(padded(batch, rows)) for rows in np.split(np.arange(B), [6, 12])]
    for name, sums in expected.items():
        np.testing.assert_allclose(np.sum([part[name] for part in parts], axis=0), sums, rtol=1e-5)
    assert expected["sentence_pair/loss"][1] == B - 2
    available = (batch["attention_mask"] & (batch["input_ids"] >= 4)).sum(-1)
    predicted = np.maximum(np.round(0.15 * available), 1) * batch["example_weight"]
    assert expected["mlm/loss"][1] == predicted.sum()


def test_rows_of_weight_zero_have_no_effect(evaluate, batch):
    changed = {name: values.copy() for name, values in batch.items()}
    for row in np.flatnonzero(batch["example_weight"] == 0):
        changed["input_ids"][row] = 7
        changed["attention_mask"][row] = True
        changed["pair_label"][row] = 1 - changed["pair_label"][row]
    expected = evaluate(batch)
    for name, sums in evaluate(changed).items():
        np.testing.assert_allclose(sums, expected[name], rtol=1e-6)
