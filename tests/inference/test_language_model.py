"""The batch that a language model makes of a prompt: tokens, and which of them are there."""

import types

import numpy as np

from bertjax.inference.language_model import LanguageModel


class Recorder:
    """A pretrainer whose encoder has no parameters, and whose cache is the batch that it read."""

    encoder = types.SimpleNamespace(prefill=lambda batch, room: (None, batch | {"room": room}))

    def apply(self, variables, *arguments, method, mutable):
        return method(self, *arguments), {}


def test_a_token_of_id_0_belongs_to_a_prompt_and_what_fills_it_up_does_not():
    model = LanguageModel(Recorder(), {}, None, 40, None, None)
    history = np.array([[-1, -1, 0, 7, 2], [5, 0, 0, 4, 9], [-1, -1, -1, 3, 0]])
    read = model.prefill({}, history, 6)
    np.testing.assert_array_equal(
        read["attention_mask"], [[False, False, True, True], [True] * 4, [False] * 3 + [True]]
    )
    np.testing.assert_array_equal(read["input_ids"], [[0, 0, 0, 7], [5, 0, 0, 4], [0, 0, 0, 3]])
