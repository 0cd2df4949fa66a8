"""Host batches on a mesh: placement, counts of tokens, waiting time."""

import types

import numpy as np

from bertjax.train import loop as feed_module
from bertjax.train.loop import Feed
from bertjax.train.sharding import batch_sharding, make_mesh


def test_batches_are_placed_and_their_tokens_counted():
    mesh = make_mesh({"data": 8, "fsdp": 1, "tensor": 1, "sequence": 1})
    host = [(5, {"input_ids": np.full((8, 3), 5)}), (6, {"input_ids": np.full((8, 7), 6)})]
    feed = Feed(iter(host), mesh)
    placed = list(feed)
    assert [step for step, _ in placed] == [5, 6]
    for step, batch in placed:
        assert batch["input_ids"].sharding == batch_sharding(mesh)
        assert (np.asarray(batch["input_ids"]) == step).all()
    # A batch is known by the steps done before it, its work by the step that it makes.
    assert feed.work(6).tokens == 24
    assert feed.work(7).tokens == 56


def test_waiting_time_includes_building_a_batch_and_not_a_step(monkeypatch):
    now = [1000.0]
    clock = types.SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(feed_module, "time", clock)

    def built():
        for step in range(4):
            now[0] += 3
            yield step, {"input_ids": np.full((8, 5), step)}

    feed = Feed(built(), make_mesh({"data": 8, "fsdp": 1, "tensor": 1, "sequence": 1}))
    for _ in feed:
        now[0] += 100
    assert feed.wait_seconds == 12
