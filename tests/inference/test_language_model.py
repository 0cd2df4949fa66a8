"""The batch of a language model for a prompt: tokens and attention mask."""

import types

import numpy as np

from bertjax.inference.language_model import LanguageModel


class Recorder:
    """A pretrainer without parameters whose cache is the batch that it receives."""

    encoder = types.SimpleNamespace(prefill=lambda batch, room: (None, batch | {"room": room}))

    def apply(self, variables, *arguments, method, mutable):
        return method(self, *arguments), {}


def test_tokens_of_id_0_are_visible_in_a_prompt_and_padding_is_not():
    model = LanguageModel(Recorder(), {}, None, 40, None, None)
    history = np.array([[-1, -1, 0, 7, 2], [5, 0, 0, 4, 9], [-1, -1, -1, 3, 0]])
    read = model.prefill({}, history, 6)
    np.testing.assert_array_equal(
        read["attention_mask"], [[False, False, True, True], [True] * 4, [False] * 3 + [True]]
    )
    np.testing.assert_array_equal(read["input_ids"], [[0, 0, 0, 7], [5, 0, 0, 4], [0, 0, 0, 3]])
