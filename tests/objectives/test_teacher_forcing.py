"""Teacher forcing objectives: keyed sampling (invariant 1), exact targets, loss by hand."""

import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from bertjax.errors import UserError
from bertjax.models.transformer import Model
from bertjax.objectives import infilling, mass, seq2seq, span_corruption
from bertjax.pretrainer import Encoded, Pretrainer

PAD, CLS, SEP, MASK, VOCABULARY = 0, 2, 3, 4, 61
SPECIAL = (PAD, 1, CLS, SEP, MASK)
OBJECTIVES = {
    "span_corruption": span_corruption.Objective(PAD, SEP, SPECIAL, 71, num_sentinels=10),
    "infilling": infilling.Objective(MASK, PAD, SEP, SPECIAL),
    "mass": mass.Objective(MASK, SPECIAL, VOCABULARY),
}


@pytest.fixture(scope="module")
def prepare(encoder):
    """`prepare(name, batch)`, compiled once for each shape."""

    def make(objective):
        return jax.jit(
            lambda batch: objective.apply({}, encoder, batch, train=True, method="prepare")
        )

    compiled = {name: make(objective) for name, objective in OBJECTIVES.items()}

    def run(name, batch):
        prepared = dict(compiled[name](batch))
        del prepared["example_key"]
        return jax.tree.map(np.asarray, prepared)

    return run


@pytest.mark.parametrize("name", OBJECTIVES)
def test_samples_depend_on_example_and_step(name, prepare, make_batch):
    batch = make_batch()
    whole = prepare(name, batch)
    half = prepare(name, jax.tree.map(lambda rows: rows[4:], batch))
    for key, rows in half.items():
        np.testing.assert_array_equal(whole[key][4:], rows, err_msg=key)
    later = prepare(name, make_batch(step=1))
    assert (later["input_ids"] != whole["input_ids"]).any()
    assert {rows.shape[1] % 16 for key, rows in whole.items() if key.startswith("target")} <= {0, 8}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_given_targets_are_kept(name, prepare, make_batch):
    prepared = prepare(name, make_batch())
    again = prepare(name, {**make_batch(step=1), **prepared})
    for key, rows in prepared.items():
        np.testing.assert_array_equal(again[key], rows)


def test_the_target_of_infilling_is_the_whole_text(prepare, make_batch):
    batch = make_batch()
    prepared = prepare("infilling", batch)
    np.testing.assert_array_equal(prepared["target_ids"], batch["input_ids"])
    np.testing.assert_array_equal(prepared["decoder_input_ids"][:, 0], [SEP] * 8)
    text = np.asarray(batch["attention_mask"].sum(1)) - 2
    kept = (prepared["attention_mask"] & (prepared["input_ids"] != MASK)).sum(1) - 2
    np.testing.assert_array_equal(text - kept, np.round(0.3 * text))


def test_the_target_of_mass_is_half_of_the_text_with_its_positions(prepare, make_batch):
    batch = make_batch()
    prepared = prepare("mass", batch)
    target_mask = prepared["target_mask"]
    text = np.asarray(batch["attention_mask"].sum(1)) - 2
    np.testing.assert_array_equal(target_mask.sum(1), np.round(0.5 * text))
    ids = np.asarray(batch["input_ids"])
    output = np.take_along_axis(ids, prepared["decoder_positions"], axis=1)
    np.testing.assert_array_equal(prepared["target_ids"][target_mask], output[target_mask])
    assert not np.isin(output[target_mask], SPECIAL).any()
    changed = (prepared["input_ids"] != ids).sum(1)
    assert np.all(changed <= target_mask.sum(1))
    assert changed.sum() > 0.7 * target_mask.sum()


def test_a_fragment_of_mass_can_be_anywhere_in_its_text(prepare, make_batch):
    prepared = prepare("mass", make_batch(301, 9, full=True))
    # [CLS], seven tokens of text, of which the fragment is four, and [SEP].
    assert (prepared["target_mask"].sum(1) == 4).all()
    assert set(prepared["decoder_positions"][:, 0].tolist()) == {1, 2, 3, 4}


def test_the_decoder_input_of_mass_is_a_mask_and_the_fragment(prepare, make_batch):
    prepared = prepare("mass", make_batch())
    read = prepared["decoder_input_ids"]
    np.testing.assert_array_equal(read[:, 0], [MASK] * 8)
    np.testing.assert_array_equal(read[:, 1:], prepared["target_ids"][:, :-1])


def test_too_few_sentinels_are_refused(encoder, make_batch):
    few = span_corruption.Objective(PAD, SEP, SPECIAL, 62, num_sentinels=1)
    with pytest.raises(UserError, match="num_sentinels: got 1, expected at least 2"):
        few.apply({}, encoder, make_batch(), train=True, method="prepare")


def test_the_loss_by_hand_with_smoothing_only_in_training(random_variables, make_batch):
    batch = make_batch(4, 6)
    target_mask = jnp.arange(6) < jnp.array([6, 2, 5, 3])[:, None]
    batch |= {"target_ids": batch["input_ids"][:, ::-1], "target_mask": target_mask}
    batch["example_weight"] = jnp.asarray([1.0, 1.0, 1.0, 0.0])
    model = Model(VOCABULARY, 6, 1, 2, 5, hidden_dropout_prob=0.0)
    module = Pretrainer(model, {"seq2seq": lambda: seq2seq.Objective(PAD, SPECIAL)})
    variables = random_variables(module, batch, train=False)

    def decoded(module, batch):
        batch = module.prepare(batch, train=False)
        return module.encoder.attend(module.encoder(batch, train=False).decoded)

    score = jax.jit(functools.partial(module.apply, method=decoded))
    logits = np.asarray(score(variables, batch), np.float64)
    log_probs = scipy.special.log_softmax(logits, axis=-1)
    own = np.take_along_axis(log_probs, np.asarray(batch["target_ids"])[..., None], 2)[..., 0]
    weights = np.asarray(target_mask) * np.array([1, 1, 1, 0])[:, None]
    plain, smooth = -(weights * own).sum(), -(weights * log_probs.mean(-1)).sum()
    for train, expected in ((False, plain), (True, 0.9 * plain + 0.1 * smooth)):
        losses, metrics = jax.jit(functools.partial(module.apply, train=train))(variables, batch)
        assert float(losses["seq2seq"][0]) == pytest.approx(expected, rel=1e-4)
        assert losses["seq2seq"][1] == 13
    of_text = weights * ~np.isin(batch["target_ids"], SPECIAL)
    text_loss, weight = metrics["seq2seq/text_loss"]
    assert float(text_loss) == pytest.approx(-(of_text * own).sum(), rel=1e-4)
    assert weight == of_text.sum()


class Uniform(nn.Module):
    """An encoder-decoder with equal logits for all tokens."""

    vocab_size: int = 71
    hidden_size: int = 71
    embedding_size: int = 71
    hidden_act: str = "gelu"
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    precision: str = "float32"

    def __call__(self, batch, *, train):
        zeros = jnp.zeros((*batch["target_ids"].shape, 71))
        return Encoded(zeros, decoded=zeros)

    def attend(self, hidden):
        return hidden


def test_text_loss_excludes_sentinels_and_special_tokens():
    module = Pretrainer(Uniform(), {"spans": lambda: OBJECTIVES["span_corruption"].clone()})
    target_ids = jnp.asarray([[70, 8, 60, 69, 9, SEP, PAD], [70, 61, 5, SEP, PAD, PAD, PAD]])
    batch = {"target_ids": target_ids, "target_mask": target_ids != PAD}
    losses, metrics = module.apply({}, batch, train=False)
    # Sentinels are the tokens 61 to 70: of the text are 8, 60, 9 and 5.
    expected = np.log(71)
    assert losses["spans"] == (pytest.approx(10 * expected, rel=1e-5), 10)
    assert metrics["spans/text_loss"] == (pytest.approx(4 * expected, rel=1e-5), 4)


def test_logits_of_all_targets_are_not_materialised(make_batch):
    """Invariant 6: logits are computed for an eighth of the targets at a time."""
    batch = make_batch(4, 16)
    batch |= {"target_ids": batch["input_ids"], "target_mask": batch["attention_mask"]}
    model = Model(VOCABULARY, 6, 1, 2, 5, hidden_dropout_prob=0.0)
    module = Pretrainer(model, {"seq2seq": lambda: seq2seq.Objective(PAD, SPECIAL)})
    boxed = jax.eval_shape(lambda: module.init(jax.random.key(0), batch, train=False))
    shapes = nn.meta.unbox(boxed)["params"]

    def loss(params):
        return module.apply({"params": params}, batch, train=False)[0]["seq2seq"][0]

    program = str(jax.make_jaxpr(jax.grad(loss))(shapes))
    found = {tuple(map(int, each.split(","))) for each in re.findall(r"f32\[([\d,]+)\]", program)}
    scores = {shape for shape in found if shape[-1] == VOCABULARY}
    assert (4, 2, VOCABULARY) in scores
    assert max(int(np.prod(shape[:-1])) for shape in scores) == 4 * 2


def test_missing_inputs_are_refused(encoder, make_batch):
    objective = seq2seq.Objective(PAD, SPECIAL)
    with pytest.raises(UserError, match="objective seq2seq requires sources and targets"):
        objective.prepare(encoder, make_batch(), train=True)
    batch = {"target_ids": jnp.ones((2, 3), int), "target_mask": jnp.ones((2, 3), bool)}
    with pytest.raises(UserError, match=r"set --config\.model\.name=transformer"):
        objective.loss(encoder, Encoded(jnp.zeros((2, 3, 6))), batch, train=True)
