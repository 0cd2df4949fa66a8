"""Maximal update parametrisation: coordinate check, its parts by hand, refused options."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import build
from bertjax.config import load_config
from bertjax.errors import UserError
from bertjax.objectives import generator, mlm, sentence_pair
from bertjax.pretrainer import Pretrainer
from bertjax.train import optimizer
from bertjax.train.state import create, unbox
from bertjax.train.step import make_train_step

B, L, V, BASE = 8, 12, 50, 32
FIELDS = {
    "vocab_size": V,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": L,
    "initializer_range": 0.2,
    "output_hidden_states": True,
}
WITHOUT_DROPOUT = {
    "bert": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "modernbert": {"attention_output_dropout_prob": 0.0},
}
MUP = {"mup_base_width": BASE, "mup_base_heads": 2}
LEARNING_RATE, STEPS = 0.003, 3


def rows():
    """A batch with masked tokens, so that no mask is sampled."""
    random = np.random.default_rng(0)
    positions = jnp.broadcast_to(jnp.array([1, 4, 5, 9]), (B, 4))
    input_ids = jnp.asarray(random.integers(5, V, (B, L)))
    return {
        "input_ids": input_ids.at[:, 4].set(4),
        "attention_mask": jnp.ones((B, L), bool),
        "pair_label": jnp.asarray(random.integers(0, 2, B)),
        "mlm_positions": positions,
        "mlm_labels": jnp.take_along_axis(input_ids, positions, axis=1),
        "mlm_weights": jnp.ones((B, 4)),
    }


def parts(name, width, **fields):
    """A pretrainer of heads of width / 2, and AdamW without decay."""
    size = {"hidden_size": width, "intermediate_size": 2 * width}
    encoder = {"name": name, **FIELDS, **WITHOUT_DROPOUT[name], **size, **fields}
    heads = {
        "mlm": functools.partial(
            mlm.Objective, mask_id=4, special_ids=(0, 1, 2, 3, 4), vocab_size=V
        )
    }
    if name == "bert":
        heads["sentence_pair"] = sentence_pair.Objective
    ratio = width / fields["mup_base_width"] if fields else 0.0
    adamw = optimizer.make("adamw", weight_decay=0.0, adam_eps=1e-12, mup_width_ratio=ratio)
    return Pretrainer(build.encoder(encoder), heads), adamw


def outputs(name, params, pretrainer):
    """Hidden states of all layers, logits, and scores of the second layer."""

    def look(module):
        encoded = module.encoder(rows(), train=False)
        first, *hidden = encoded.hidden_states
        found = {"embeddings": first, "layer 1": hidden[0], "layer 2": hidden[1]}
        found["mlm"] = module.mlm.token_logits(module.encoder, encoded)
        if name == "bert":
            found["pair"] = module.sentence_pair.logits(module.encoder, encoded)
            found["scores"] = module.encoder.attention_scores(hidden[0], 1, rows())
        return found

    return pretrainer.apply({"params": params}, method=look)


def program(name, width, **fields):
    """A function without arguments: the changes of all outputs in a few steps, as RMS."""
    pretrainer, adamw = parts(name, width, **fields)
    step = make_train_step(pretrainer, adamw, lambda step: LEARNING_RATE, seed=0)

    def run():
        start = unbox(create(pretrainer, adamw, rows(), 0))
        end, _ = jax.lax.scan(lambda state, _: (step(state, rows())[0], None), start, None, STEPS)
        both = jax.tree.map(lambda *leaves: jnp.stack(leaves), start.params, end.params)
        found = jax.vmap(lambda params: outputs(name, params, pretrainer))(both)
        return jax.tree.map(lambda each: jnp.sqrt(jnp.mean(jnp.square(each[1] - each[0]))), found)

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "growing"),
    [
        ("bert", ("layer 1", "mlm", "scores")),
        ("modernbert", ("layer 1", "layer 2", "mlm")),
    ],
)
def test_the_coordinate_check(name, growing):
    """Changes grow with the width in the standard parametrisation alone (appendix D.1)."""
    narrow = jax.jit(program(name, BASE))()
    wide = jax.jit(program(name, 4 * BASE, **MUP))()
    assert [part for part in wide if wide[part] > 1.25 * narrow[part]] == []
    standard = jax.jit(program(name, 4 * BASE))()
    assert [part for part in growing if standard[part] < 1.5 * narrow[part]] == []


MODELS = ["bert", pytest.param("modernbert", marks=pytest.mark.slow)]


@pytest.mark.parametrize("name", MODELS)
def test_at_the_base_width_the_program_is_the_standard_one(name):
    def first_step(pretrainer, adamw):
        step = make_train_step(pretrainer, adamw, lambda step: LEARNING_RATE, seed=0)
        return lambda: step(unbox(create(pretrainer, adamw, rows(), 0)), rows())

    each = [first_step(*parts(name, BASE, **fields)) for fields in ({}, MUP)]
    programs = [jax.jit(function).lower().as_text() for function in each]
    assert programs[0] == programs[1]


@pytest.mark.parametrize("name", MODELS)
def test_initial_values_and_multipliers_of_a_model_four_times_as_wide(name):
    """Half of the standard deviation for kernels to a hidden width, a quarter for classifiers."""
    made = [parts(name, 4 * BASE, **fields) for fields in ({}, MUP)]

    @jax.jit
    def run():
        params = [unbox(create(*each, rows(), 0)).params for each in made]
        hidden = jax.random.normal(jax.random.key(1), (B, L, 4 * BASE))

        def multiply(module):
            encoder = module.encoder
            has_scores = hasattr(encoder, "attention_scores")
            scores = encoder.attention_scores(hidden, 1, rows()) if has_scores else 0.0
            return encoder.attend(hidden), scores

        # With the same parameters.
        return params, [each.apply({"params": params[0]}, method=multiply) for each, _ in made]

    (plain, scaled), ((logits, scores), (mup_logits, mup_scores)) = run()
    factors = set()
    for (path, expected), found in zip(
        jax.tree_util.tree_leaves_with_path(plain), jax.tree.leaves(scaled), strict=True
    ):
        names = optimizer.parameter_name(path)
        factor = 1.0 if names[-1] != "kernel" else 0.25 if "classifier" in names else 0.5
        np.testing.assert_allclose(found, factor * expected, rtol=1e-6)
        factors.add(factor)
    assert factors == ({1.0, 0.5, 0.25} if name == "bert" else {1.0, 0.5})
    np.testing.assert_allclose(mup_logits, logits / 4, rtol=1e-6, atol=1e-6)
    # 1 / sqrt(64) becomes sqrt(16) / 64.
    np.testing.assert_allclose(mup_scores, scores / 2, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["adamw", "stable_adamw", "schedule_free_adamw"])
def test_updates_of_kernels_are_divided_by_the_ratio_but_weight_decay_is_not(kind):
    random = np.random.default_rng(0)

    def tree():
        made = {"kernel": random.normal(size=(3, 5)), "bias": random.normal(size=5)}
        made |= {"embedding": random.normal(size=(7, 3))}
        return {"encoder": {"dense": {n: jnp.asarray(a, jnp.float32) for n, a in made.items()}}}

    params, gradient = tree(), tree()

    def direction(ratio, decay):
        transform = optimizer.make(
            kind, max_grad_norm=0.0, weight_decay=decay, mup_width_ratio=ratio
        )
        return transform.update(gradient, transform.init(params), params)[0]["encoder"]["dense"]

    plain, scaled = direction(0.0, 0.0), direction(4.0, 0.0)
    for name, factor in (("kernel", 0.25), ("bias", 1.0), ("embedding", 1.0)):
        np.testing.assert_array_equal(scaled[name], factor * plain[name])
    decayed = direction(0.0, 0.3)["kernel"] - plain["kernel"]
    np.testing.assert_allclose(direction(4.0, 0.3)["kernel"] - scaled["kernel"], decayed, rtol=1e-4)
    assert np.abs(decayed).max() > 0.1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"optimizer.name": "muon"},
            "got 'muon' with a model that has mup_base_width, expected on",
        ),
        ({"optimizer.name": "lamb"}, "one of adamw, schedule_free_adamw, stable_adamw, which"),
        ({"model.mup_base_heads": 3}, "mup_base_width=64, mup_base_heads=3, expected"),
        ({"model.mup_base_width": 0, "model.mup_base_heads": 1}, "mup_base_width=0, mup_base_he"),
    ],
)
def test_combinations_without_a_meaning_are_refused(changes, message):
    config = load_config("configs/bert.py:tiny", {"model.mup_base_width": 64} | changes)
    with pytest.raises(UserError, match=message):
        build.check(config)


def test_other_models_have_no_such_fields():
    with pytest.raises(UserError, match="no field 'mup_base_width'"):
        load_config("configs/albert.py:tiny", {"model.mup_base_width": 64})


def test_the_config_of_the_model_selects_the_rule():
    """At twice the width, updates of kernels are half as large as other updates."""
    config = load_config("configs/bert.py:tiny", {"model.mup_base_width": 64})
    params = {"encoder": {name: jnp.zeros((2, 2)) for name in ("kernel", "embedding")}}
    transform = build.make_optimizer(config)
    ones = jax.tree.map(jnp.ones_like, params)
    update = transform.update(ones, transform.init(params), params)[0]["encoder"]
    np.testing.assert_allclose(update["kernel"], update["embedding"] / 2)


def test_a_generator_has_the_ratio_of_its_encoder():
    """An ELECTRA half as wide as its discriminator: the base model's generator is so too."""
    fields = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
    fields |= {"intermediate_size": 96, "mup_base_width": 16, "mup_base_heads": 2}
    found = generator.generator_fields(fields, 0.5)
    assert found["hidden_size"] / found["mup_base_width"] == 4.0
    assert (found["num_attention_heads"], found["mup_base_heads"]) == (2, 1)
