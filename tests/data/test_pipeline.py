"""The input pipeline: order, seeking, hosts, threads."""

import itertools
import threading
import time

import numpy as np
import pytest

from bertjax import catalog
from bertjax.data import pipeline
from bertjax.data.pipeline import Phase, batches, evaluation_batches, phased_batches
from bertjax.errors import UserError


@pytest.fixture
def make_examples(memory_corpus, varied_documents):
    """Examples of a corpus of varied documents."""

    def make(length=47, documents=30, **fields):
        corpus = memory_corpus(varied_documents(documents), record_tokens=150)
        specials = {"cls_id": 10**6, "sep_id": 10**6 + 1, "pad_id": 10**6 + 2}
        fields = {"pair": "next", "seed": 3} | fields
        examples_class = catalog.load("data/formats", "segment-pair").Format.examples_class
        return examples_class(corpus, max_seq_length=length, **specials, **fields)

    return make


def take(iterator, count):
    with iterator:
        return list(itertools.islice(iterator, count))


def assert_same(found, expected):
    assert [step for step, _ in found] == [step for step, _ in expected]
    for (step, batch), (_, other) in zip(found, expected, strict=True):
        assert batch.keys() == other.keys()
        for key, values in batch.items():
            assert np.array_equal(values, other[key]), (step, key)


def live_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("bertjax-batches")]


def test_an_epoch_has_every_example_once_in_its_own_order(make_examples):
    examples = make_examples()
    size = examples.num_examples
    steps = -(-2 * size // 13)
    ids = np.concatenate(
        [b["example_id"] for _, b in take(batches(examples, batch_size=13), steps)]
    )
    assert size % 13 != 0  # so that a batch straddles the epochs
    first, second = ids[:size].tolist(), ids[size : 2 * size].tolist()
    assert sorted(first) == sorted(second) == list(range(size))
    assert first != second
    assert first != sorted(first)


def test_batches_have_the_arrays_of_the_examples(make_examples):
    examples = make_examples()
    size = examples.num_examples
    position = 0
    for _, batch in take(batches(examples, batch_size=13), 2 * size // 13):
        for row, number in enumerate(batch["example_id"].tolist()):
            expected = examples.build(position // size, np.array([number]))
            for key, values in expected.items():
                assert np.array_equal(batch[key][row], values[0]), key
            position += 1
        assert batch["example_weight"].dtype == np.float32
        assert batch["example_weight"].tolist() == [1.0] * 13


@pytest.mark.parametrize("start", [1, 7, 40, 1003])
def test_seeking_equals_iterating(make_examples, start):
    examples = make_examples(documents=12)
    went = take(batches(examples, batch_size=5), start + 6)[start:]
    assert_same(take(batches(examples, batch_size=5, start_step=start), 6), went)


def test_seeking_far_is_immediate(make_examples):
    examples = make_examples()
    reads = examples._corpus.read_records
    ((step, _),) = take(batches(examples, batch_size=5, start_step=10**14, prefetch=1), 1)
    assert step == 10**14
    assert len(reads) < 10_000


@pytest.mark.parametrize("hosts", [2, 3, 6])
def test_the_rows_of_all_hosts_are_the_global_batch(make_examples, hosts):
    examples = make_examples()
    whole = take(batches(examples, batch_size=12), 40)
    share = 12 // hosts
    parts = [
        take(batches(examples, batch_size=12, rows=slice(host * share, host * share + share)), 40)
        for host in range(hosts)
    ]
    for index, (step, batch) in enumerate(whole):
        assert all(part[index][0] == step for part in parts)
        for key, values in batch.items():
            joined = np.concatenate([part[index][1][key] for part in parts])
            assert np.array_equal(joined, values), key


def test_rows_may_be_any_numbers(make_examples):
    examples = make_examples()
    rows = np.array([7, 0, 3])
    whole = take(batches(examples, batch_size=12), 5)
    some = take(batches(examples, batch_size=12, rows=rows), 5)
    assert_same(some, [(step, {k: v[rows] for k, v in batch.items()}) for step, batch in whole])


def test_threads_and_prefetch_change_nothing(make_examples):
    examples = make_examples()
    expected = take(batches(examples, batch_size=11, threads=1, prefetch=1), 200)
    assert_same(take(batches(examples, batch_size=11, threads=4, prefetch=500), 200), expected)


def test_batches_end_after_num_steps(make_examples):
    found = list(batches(make_examples(), batch_size=5, start_step=7, num_steps=10))
    assert [step for step, _ in found] == [7, 8, 9]
    assert list(batches(make_examples(), batch_size=5, start_step=10, num_steps=10)) == []


def test_phases_follow_each_other(make_examples):
    short, long = make_examples(30), make_examples(90)
    phases = [Phase(7, short, 11), Phase(9, long, 4), Phase(None, short, 3)]
    found = take(phased_batches(phases), 21)
    shapes = [batch["input_ids"].shape for _, batch in found]
    assert shapes == [(11, 30)] * 7 + [(4, 90)] * 9 + [(3, 30)] * 5
    assert [step for step, _ in found] == list(range(21))
    alone = take(batches(long, batch_size=4), 9)
    assert_same([(step - 7, batch) for step, batch in found[7:16]], alone)
    for start in (3, 7, 12, 16, 18):
        assert_same(take(phased_batches(phases, start_step=start), 21 - start), found[start:])


def test_phases_have_separate_rows(make_examples):
    short, long = make_examples(30), make_examples(90)
    whole = take(phased_batches([Phase(2, short, 8), Phase(2, long, 4)]), 4)
    half = [Phase(2, short, 8, slice(4, 8)), Phase(2, long, 4, slice(2, 4))]
    for (_, batch), (_, all_rows) in zip(take(phased_batches(half), 4), whole, strict=True):
        size = len(all_rows["example_id"])
        assert np.array_equal(batch["input_ids"], all_rows["input_ids"][size // 2 :])


def test_frozen_examples_have_another_order_in_each_epoch(make_examples):
    examples = make_examples(resegment=False)
    size = examples.num_examples
    found = [b for _, b in take(batches(examples, batch_size=1), 2 * size)]
    rows = [{int(b["example_id"][0]): b["input_ids"].tolist() for b in found[:size]}]
    rows.append({int(b["example_id"][0]): b["input_ids"].tolist() for b in found[size:]})
    assert rows[0] == rows[1]
    assert list(rows[0]) != list(rows[1])


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("batch_size", [8, 14, 10_000])
def test_evaluation_counts_every_example_once(make_examples, batch_size, hosts):
    examples = make_examples()
    share, counted, total = batch_size // hosts, [], 0
    for host in range(hosts):
        rows = slice(host * share, (host + 1) * share)
        for step, (number, batch) in enumerate(
            evaluation_batches(examples, batch_size=batch_size, rows=rows)
        ):
            assert number == step
            assert len(batch["input_ids"]) == share
            weight = batch["example_weight"]
            assert weight.dtype == np.float32
            counted += batch["example_id"][weight == 1].tolist()
            total += share
    assert sorted(counted) == list(range(examples.num_examples))
    assert total == -(-examples.num_examples // batch_size) * batch_size


def test_evaluation_is_deterministic(make_examples):
    examples = make_examples()
    found = [list(evaluation_batches(examples, batch_size=16)) for _ in range(2)]
    assert_same(*found)
    ids = np.concatenate([batch["example_id"] for _, batch in found[0]])
    assert ids.tolist() != sorted(ids.tolist())


def test_a_corpus_smaller_than_a_batch_is_refused(make_examples):
    examples = make_examples(documents=3)
    with pytest.raises(UserError, match=r"expected at least batch_size=1000; lower batch_size"):
        batches(examples, batch_size=1000)


def test_an_error_in_a_thread_is_raised_at_its_batch(make_examples, monkeypatch):
    examples = make_examples()
    build, failing = examples.build, {"after": 3}

    def sometimes(epoch, example):
        if failing["after"] == 0:
            raise UserError("the disk went away")
        failing["after"] -= 1
        return build(epoch, example)

    monkeypatch.setattr(examples, "build", sometimes)
    monkeypatch.setattr(pipeline, "_steps_per_job", lambda phase: 1)
    iterator = batches(examples, batch_size=2, threads=1)
    assert [next(iterator)[0] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(UserError, match="the disk went away"):
        next(iterator)
    assert live_threads() == []
    with pytest.raises(StopIteration):
        next(iterator)


def test_small_rows_are_built_together_and_large_ones_by_the_step(make_examples, monkeypatch):
    examples, built = make_examples(), []
    build = examples.build
    row_bytes = sum(values.nbytes for values in build(0, np.arange(1)).values())

    def counted(epoch, example):
        built.append(len(example))
        return build(epoch, example)

    monkeypatch.setattr(examples, "build", counted)
    for size, expected in ((8 * row_bytes, [1, 8, 8, 8]), (row_bytes, [1, 2] + 11 * [2])):
        monkeypatch.setattr(pipeline, "_BYTES_PER_JOB", size)
        with batches(examples, batch_size=2, num_steps=12, threads=1) as iterator:
            assert [step for step, _ in iterator] == list(range(12))
        assert built == expected
        built.clear()


def test_prefetching_is_bounded(make_examples, monkeypatch):
    examples = make_examples()
    monkeypatch.setattr(pipeline, "_steps_per_job", lambda phase: 1)
    build, built, enough = examples.build, [], threading.Event()

    def counted(epoch, example):
        built.append(example)
        if len(built) == 7:
            enough.set()
        return build(epoch, example)

    monkeypatch.setattr(examples, "build", counted)
    with batches(examples, batch_size=2, prefetch=5, threads=2) as iterator:
        assert enough.wait(10)
        iterator._pool.submit(int).result()  # queued after all started work
        assert len(built) == 7
        next(iterator)


def test_closing_stops_the_threads(make_examples, monkeypatch):
    examples = make_examples()
    monkeypatch.setattr(pipeline, "_steps_per_job", lambda phase: 1)
    build, started, resume = examples.build, [], threading.Event()

    def slow(epoch, example):
        started.append(example)
        resume.wait(10)
        return build(epoch, example)

    monkeypatch.setattr(examples, "build", slow)
    iterator = batches(examples, batch_size=2, prefetch=50, threads=2)
    while len(started) < 2:
        time.sleep(0.001)
    threading.Timer(0.05, resume.set).start()
    iterator.close()
    assert live_threads() == []
    assert len(started) <= 4  # running ones, and those started before the stop
    assert list(iterator) == []


def test_waiting_time_is_measured(make_examples, monkeypatch):
    examples = make_examples()
    build = examples.build

    def slow(epoch, example):
        time.sleep(0.1)
        return build(epoch, example)

    monkeypatch.setattr(examples, "build", slow)
    with batches(examples, batch_size=2, threads=1) as iterator:
        assert iterator.wait_seconds == 0
        next(iterator)
        waited = iterator.wait_seconds
        assert waited > 0
        next(iterator)  # of the same job
        assert iterator.wait_seconds == waited
