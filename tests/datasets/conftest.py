"""What tests of datasets share: how a small model reads."""

import pytest

from bertjax.data.task_reading import Reading


@pytest.fixture(scope="session")
def reading():
    """Makes a `Reading` with a tokenizer."""

    def make(tokenizer, **changes):
        fields = {
            "tokenizer": tokenizer,
            "max_seq_length": 12,
            "cls_last": False,
            "max_chars_per_word": 0,
            "takes_positions": True,
            "batch_size": 2,
            "eval_batch_size": 3,
            "padded_lengths": (8, 16),
            "batches_per_group": 1,
            "max_train_examples": 0,
            "seed": 0,
        }
        return Reading(**fields | changes)

    return make
