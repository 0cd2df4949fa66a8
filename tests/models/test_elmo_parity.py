"""Parity with a released ELMo: expected outputs of allennlp's fixture, to 1e-5 (invariant 10)."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import build
from bertjax.data import characters
from bertjax.huggingface import elmo
from bertjax.huggingface.importing import parameter_shapes
from bertjax.pretrainer import Pretrainer
from bertjax.train.checkpoint.trees import nest

h5py = pytest.importorskip("h5py", reason="weights of ELMo need h5py: pip install 'bertjax[elmo]'")

pytestmark = pytest.mark.slow

STREAMS, SENTENCES = 3, 10


@pytest.fixture(scope="module")
def folder(shared_data):
    return shared_data / "elmo" / "allennlp"


@pytest.fixture(scope="module")
def loaded(folder):
    """The model and its variables."""
    released = elmo.read(folder)
    how = {"vocab_size": 5, "precision": "float32", "unroll": 1, "output_hidden_states": True}
    model = build.encoder(elmo.fields(released.options) | how)
    params = elmo.parameters(released, parameter_shapes(Pretrainer(model, {})), folder)
    return model, jax.tree.map(jnp.asarray, nest(params)["encoder"])


def rows(sentences, width):
    """A batch of sentences, each between its boundary tokens."""
    begin, end = characters.TEXT_BEGIN, characters.TEXT_END
    begin, end = (characters.boundary_word(mark, width)[None] for mark in (begin, end))
    spelled = [
        np.concatenate([begin, characters.spell(sentence.split(), width), end])
        for sentence in sentences
    ]
    max_length = 66
    attention_mask = np.arange(max_length) < np.array([len(row) for row in spelled])[:, None]
    char_ids = np.zeros((len(spelled), max_length, width), np.int16)
    char_ids[attention_mask] = np.concatenate(spelled)
    return {"char_ids": jnp.asarray(char_ids), "attention_mask": jnp.asarray(attention_mask)}


@pytest.fixture(scope="module")
def outputs(folder, loaded):
    """All layers of all sentences of three streams, as rows that continue: [N, tokens, D]."""
    model, params = loaded
    streams = json.loads((folder / "sentences.json").read_text())
    width = model.max_chars_per_word
    lead, each = (STREAMS, model.num_hidden_layers, 2), model.hidden_size // 2
    state = {
        "cell": jnp.zeros((*lead, model.intermediate_size)),
        "hidden": jnp.zeros((*lead, each)),
    }
    carry = {"state": state}

    @jax.jit
    def read(carry, batch):
        variables = {"params": params, "carry": carry}
        encoded, changed = model.apply(variables, batch, train=False, mutable=["carry"])
        return jnp.stack(encoded.hidden_states), changed["carry"]

    found = {}
    for number in range(SENTENCES):
        sentences = [stream[number] for stream in streams]
        batch = rows(sentences, width) | {"is_continuation": jnp.full(STREAMS, number > 0)}
        layers, carry = read(carry, batch)
        for stream in range(STREAMS):
            length = len(sentences[stream].split())
            found[stream, number] = np.asarray(layers[:, stream, 1 : 1 + length])
    return found


def test_the_top_layer_equals_the_reference(folder, outputs):
    """File i has, for stream i, the outputs of the last LSTM in both directions."""
    for stream in range(STREAMS):
        with h5py.File(folder / f"lm_embeddings_{stream}.hdf5") as file:
            for number in range(SENTENCES):
                forward, backward = np.asarray(file[str(number)])
                expected = np.concatenate([forward, backward], axis=-1)
                got = outputs[stream, number][-1]
                np.testing.assert_allclose(got, expected, atol=1e-5, err_msg=f"{stream} {number}")


def test_the_bottom_layer_equals_the_reference(folder, loaded):
    """The reference has a vector for each word of the vocabulary, including boundary tokens."""
    model, params = loaded
    words = (folder / "vocab_test.txt").read_text(encoding="utf-8").split()
    char_ids = characters.spell(words, model.max_chars_per_word)
    for word, mark in (("<S>", characters.TEXT_BEGIN), ("</S>", characters.TEXT_END)):
        char_ids[words.index(word)] = characters.boundary_word(mark, model.max_chars_per_word)
    with h5py.File(folder / "elmo_token_embeddings.hdf5") as file:
        expected = np.asarray(file["embedding"])
    attention_mask = jnp.ones((1, len(words)), bool)
    batch = {"char_ids": jnp.asarray(char_ids)[None], "attention_mask": attention_mask}
    encoded = jax.jit(lambda rows: model.apply({"params": params}, rows, train=False))(batch)
    np.testing.assert_allclose(
        encoded.hidden_states[0][0, :, : expected.shape[1]], expected, atol=1e-5
    )
