"""DeBERTa's objectives: the mask decoder's masked LM; a generator that shares word embeddings."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertjax.errors import UserError
from bertjax.models import bert, deberta
from bertjax.objectives import enhanced_mlm, generator, mlm, rtd
from bertjax.pretrainer import Pretrainer

PAD, CLS, SEP, MASK = 0, 2, 3, 4
V, D, N, H, F = 61, 24, 2, 4, 20
FIELDS = {"mask_id": MASK, "special_ids": (PAD, 1, CLS, SEP), "vocab_size": V}
SIZES = {
    "vocab_size": V,
    "hidden_size": D,
    "num_hidden_layers": N,
    "num_attention_heads": H,
    "intermediate_size": F,
    "max_position_embeddings": 64,
    "position_buckets": 8,
    "initializer_range": 0.3,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
V3 = {"size": 1.0, "depth": 0.5, "mask_decoder_layers": 2, "mask_share": 1.0}


def pretrainer(sharing, **fields):
    model = deberta.Model(**SIZES, embedding_sharing=sharing)
    fields = FIELDS | V3 | fields
    objectives = {
        "generator": functools.partial(generator.Objective, **fields),
        "rtd": rtd.Objective,
    }
    return Pretrainer(model, objectives)


@pytest.fixture(scope="module")
def batch(make_batch):
    return make_batch(4, 20)


@pytest.fixture(scope="module")
def params(batch):
    module = pretrainer("gdes")
    return jax.jit(lambda: nn.meta.unbox(module.init(jax.random.key(0), batch, train=False)))()[
        "params"
    ]


@functools.partial(jax.jit, static_argnums=0)
def losses_and_gradients(sharing, params, batch):
    """The loss of each objective, and its gradient."""

    def losses(params):
        found, _ = pretrainer(sharing).apply({"params": params}, batch, train=False)
        return {name: total for name, (total, _) in found.items()}

    values, pull_back = jax.vjp(losses, params)
    chosen = {name: {other: jnp.float32(other == name) for other in values} for name in values}
    return values, {name: pull_back(each)[0] for name, each in chosen.items()}


@pytest.fixture(scope="module")
def with_two_tables(params, batch):
    return losses_and_gradients("gdes", params, batch)


@pytest.fixture(scope="module")
def with_one_table(params, batch):
    """The same parameters with one table, which both train."""
    tables = params["encoder"]["shared_embeddings"]
    encoder = {n: each for n, each in params["encoder"].items() if n != "shared_embeddings"}
    encoder["word_embeddings"] = tables["generator"]
    return losses_and_gradients("es", params | {"encoder": encoder}, batch)


@pytest.mark.slow
def test_the_losses_begin_as_with_one_table(with_one_table, with_two_tables):
    """The difference is initially zero."""
    assert with_two_tables[0].keys() == {"generator", "rtd"}
    for name, loss in with_two_tables[0].items():
        assert float(loss) == pytest.approx(float(with_one_table[0][name]), rel=1e-5)


def test_each_loss_trains_its_own_table(with_one_table, with_two_tables):
    """V3, section 3.3: rtd has no gradient for the generator's table, the generator none for the
    difference."""
    for name, owner, other in (("generator", "generator", "delta"), ("rtd", "delta", "generator")):
        gradient = with_two_tables[1][name]
        tables = gradient["encoder"]["shared_embeddings"]
        assert not np.asarray(tables[other]["embedding"]).any()
        # With one table its gradient is the same.
        expected = with_one_table[1][name]["encoder"]["word_embeddings"]["embedding"]
        found = tables[owner]["embedding"]
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
        assert (optax.tree.norm(gradient["generator"]) > 0) == (name == "generator")
        assert (optax.tree.norm(gradient["encoder"]["layers"]) > 0) == (name == "rtd")


def test_the_generator_has_half_the_depth_and_a_mask_decoder(params):
    encoder = params["generator"]["encoder"]
    assert encoder["layers"]["block"]["attention"]["query"]["kernel"].shape == (1, D, H, D // H)
    assert "position_embeddings" in encoder
    assert "word_embeddings" not in encoder
    assert "position_embeddings" not in params["encoder"]


def test_a_mask_decoder_needs_a_model_with_one(batch):
    model = bert.Model(V, D, N, H, F, num_pooler_layers=0)
    fields = FIELDS | {"mask_decoder_layers": 2}
    module = Pretrainer(model, {"generator": functools.partial(generator.Objective, **fields)})
    with pytest.raises(UserError, match="mask_decoder_layers=2 with a model that has no mask dec"):
        jax.eval_shape(lambda: module.init(jax.random.key(0), batch, train=False))


def masked_lm(objective, **fields):
    model = deberta.Model(**SIZES, **fields)
    return Pretrainer(model, {"lm": functools.partial(objective.Objective, **FIELDS)})


def test_masked_tokens_are_predicted_from_the_decoder(random_variables, batch):
    module = masked_lm(enhanced_mlm, mask_decoder_layers=2)
    params = random_variables(module, batch, train=False)["params"]

    def logits(module, batch):
        """Logits of all positions for the masked input, and this."""
        prepared = module.prepare(batch, train=False)
        at = {n: rows for n, rows in prepared.items() if n != "mlm_positions"}
        encoded = module.encoder(at, train=False)
        return module.lm.token_logits(module.encoder, encoded), prepared

    @jax.jit
    def run(params):
        def loss(params):
            losses, _ = module.apply({"params": params}, batch, train=False)
            return losses["lm"]

        outputs = module.apply({"params": params}, batch, method=logits)
        return jax.value_and_grad(loss, has_aux=True)(params), outputs

    ((loss, weight), gradient), (everywhere, prepared) = run(params)
    assert np.asarray(gradient["encoder"]["position_embeddings"]["embedding"]).any()
    chosen = np.take_along_axis(np.asarray(everywhere), prepared["mlm_positions"][..., None], 1)
    entropy = optax.softmax_cross_entropy_with_integer_labels(chosen, prepared["mlm_labels"])
    assert float(weight) == prepared["mlm_weights"].sum()
    assert float(loss) == pytest.approx(float(jnp.sum(entropy * prepared["mlm_weights"])), rel=1e-4)


def test_without_a_decoder_it_is_a_masked_lm(random_variables, batch):
    variables = random_variables(masked_lm(mlm), batch, train=False)
    found, expected = (
        jax.jit(functools.partial(masked_lm(objective).apply, train=False))(variables, batch)[0][
            "lm"
        ][0]
        for objective in (enhanced_mlm, mlm)
    )
    assert float(found) == float(expected)
