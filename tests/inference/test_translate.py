"""Translation: the most likely tokens, independent of the batch."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.inference import translate
from bertjax.models.transformer import Model
from bertjax.tokenizers import tokenizer as tokenizers

SOURCES = ["c a b", "a", "b b a c a b c a c b b", "c c"]


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizers.train(["a b c d e f g h"] * 3, vocab_size=13)


@pytest.fixture(scope="module")
def make(tokenizer):
    model = Model(tokenizer.vocab_size, 12, 1, 2, 16)
    batch = {"input_ids": jnp.ones((1, 4), jnp.int32), "attention_mask": jnp.ones((1, 4), bool)}
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), batch, train=False))
    generator = np.random.default_rng(7)  # in which targets depend on sources
    params = jax.tree.map(
        lambda leaf: jnp.asarray(generator.normal(0, 1.0, leaf.shape), jnp.float32),
        jax.tree.map(lambda box: box.value, shapes, is_leaf=lambda x: hasattr(x, "names")),
    )["params"]
    return lambda beams: translate.Translator(model, params, tokenizer, beams, 0.6)


@pytest.mark.parametrize("beams", [1, 3])
def test_translations_do_not_depend_on_batch_and_order(beams, make):
    translator = make(beams)
    together = translator.translate(SOURCES, 2)
    assert translator.translate(SOURCES[::-1], 2) == together[::-1]
    assert len(set(together)) > 1


def test_greedy_decoding_is_the_argmax_of_the_teacher_forced_decoder(make, tokenizer):
    translator = make(1)
    (ids,) = tokenizer.encode_batch(SOURCES[:1])
    batch = {"input_ids": jnp.asarray([[*ids, tokenizer.sep_id]])}
    batch["attention_mask"] = jnp.ones(batch["input_ids"].shape, bool)
    output, most = [], 12

    @jax.jit
    def scores(ids):
        variables = {"params": translator.params}
        whole = {**batch, "decoder_input_ids": ids}
        decoded = translator.model.apply(variables, whole, train=False).decoded
        return translator.model.apply(variables, decoded, method="attend")

    for place in range(most):
        read = [tokenizer.pad_id, *output] + [0] * (most - place - 1)
        output.append(int(scores(jnp.asarray([read]))[0, place].argmax()))
    end = output.index(tokenizer.sep_id) if tokenizer.sep_id in output else most
    expected = [token for token in output[:end] if token not in tokenizer.special_ids]
    assert expected
    found = translator.translate(SOURCES[:1], 2)[0]
    assert tokenizer.encode_batch([found])[0][: len(expected)] == expected


def test_references_are_compared_after_a_tokenizer_round_trip(tokenizer):
    assert translate.count_exact_matches(["a b", "c"], ["A  b", "d"], tokenizer) == 1


def test_a_folder_that_is_not_a_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="is not a run"):
        translate.load(str(tmp_path), num_beams=4, length_penalty=0.6)


@pytest.mark.parametrize(
    ("given", "of_run", "chosen"),
    [("", "auto", "auto"), ("auto", "bfloat16", "auto"), ("", "bfloat16", "bfloat16")],
)
def test_auto_is_float32_on_cpus(given, of_run, chosen, monkeypatch):
    class Run:
        config = types.SimpleNamespace(model=types.SimpleNamespace(precision=of_run))

        def encoder(self, precision):
            raise LookupError(precision)

    monkeypatch.setattr(translate.pretrained, "load", lambda name: Run())
    monkeypatch.setattr(translate, "is_encoder_decoder", lambda run: True)
    on_cpu = jax.default_backend() == "cpu"
    with pytest.raises(LookupError, match="float32" if on_cpu and chosen == "auto" else chosen):
        translate.load("run", precision=given)
