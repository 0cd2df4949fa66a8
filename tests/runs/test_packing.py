"""Which fine-tunings may pack examples into rows, and to which it is suggested."""

import re
import types

import numpy as np
import pytest
from ml_collections import ConfigDict

from bertjax.errors import UserError
from bertjax.runs import packing
from bertjax.tasks.batches import PairBatches
from bertjax.tasks.sequences import Pairs


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": {"name": "elmo"}}, "model elmo"),
        ({"data": {"packed_examples": 8, "knowledge": "graph.spo"}}, "config.data.knowledge"),
        ({"objectives": {"soft_targets": {}}}, "further objectives"),
    ],
)
def test_examples_share_rows_only_where_the_run_separates_them(changes, reason):
    usual = {"model": {"name": "bert"}, "data": {"packed_examples": 8}}
    packing.check(ConfigDict(usual))
    with pytest.raises(UserError, match=f"packed_examples is not supported with {reason}: set it"):
        packing.check(ConfigDict(usual | changes))


@pytest.mark.parametrize(
    ("length", "changes", "line"),
    [
        (
            6,
            {},
            "padding: 81% of .* batches; --config.data.packed_examples=16 lets .* rows instead",
        ),
        (6, {"microbatches": 2}, "padding: 81% .*packed_examples=8 lets .*"),
        (6, {"microbatches": 4}, "padding: 81% of the positions of training batches"),
        (6, {"packed_examples": 8}, "padding: 25% of the positions of training batches"),
        (20, {}, "padding: 38% of the positions of training batches"),
    ],
)
def test_padding_is_reported_with_a_way_to_reduce_it(length, changes, line):
    lengths = np.full(48, length)
    pairs = Pairs(
        np.ones(lengths.sum(), np.int32), np.cumsum(lengths) - length, lengths, lengths, 0
    )
    data = {"microbatches": 1, "max_seq_length": 32} | changes
    batches = PairBatches(pairs, None, 16, (32,), packed_examples=data.get("packed_examples", 0))
    config = ConfigDict({"model": {"name": "bert"}, "data": data})
    mesh = types.SimpleNamespace(shape={"data": 1, "fsdp": 1})
    found = packing.describe_padding(config, batches, mesh)
    assert re.fullmatch(line, found), found
