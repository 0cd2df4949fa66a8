"""Baselines of held-out metrics: unigram frequencies, by hand."""

import contextlib
import math
import types

import numpy as np
import pytest
from ml_collections import ConfigDict

from bertjax.runs import finetune_job, held_out, pretrain
from bertjax.runs.held_out import summary_rows, unigram
from bertjax.runtime.interrupt import EvaluationStoppedError, Interrupt

TRAIN = types.SimpleNamespace(token_counts=np.array([9, 2, 5, 3, 1, 0]))
HELD_OUT = types.SimpleNamespace(token_counts=np.array([4, 1, 2, 0, 1, 1]))


def test_special_tokens_are_left_out():
    found = unigram(TRAIN, HELD_OUT, (0, 1))
    # Counts 5, 3, 1, 0 and one each.
    expected = -(2 * math.log(6 / 13) + math.log(2 / 13) + math.log(1 / 13)) / 4
    assert found["unigram_loss"] == pytest.approx(expected)
    assert found["unigram_accuracy"] == 2 / 4


def test_rare_words_are_one_unknown_word():
    found = unigram(TRAIN, HELD_OUT, (0, 1), unk_id=1, softmax_size=3)
    # Unknown: 2 + 3 + 1 + 0 of the training text, 1 + 0 + 1 + 1 of the held-out text.
    expected = -(3 * math.log(7 / 13) + 2 * math.log(6 / 13)) / 5
    assert found["unigram_loss"] == pytest.approx(expected)
    assert found["unigram_accuracy"] == 3 / 5


def test_rows_of_the_summary_carry_the_baseline_of_each_objective():
    config = ConfigDict({"objectives": {"mlm": {}, "generator": {}, "rtd": {}, "ponder": {}}})
    summary = {"mlm_loss": 2.0, "mlm_accuracy": 0.5, "unigram_loss": 3.0, "unigram_accuracy": 0.1}
    summary |= {"rtd_loss": 0.1, "rtd_accuracy": 0.97, "rtd_found": 0.5, "rtd_replaced": 0.25}
    rows = {metric.label: (value, base) for metric, value, base in summary_rows(config, summary)}
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert rows == {
        "MLM loss": (2.0, 3.0),
        "MLM accuracy": (0.5, 0.1),
        "RTD loss": (0.1, pytest.approx(entropy)),
        "RTD accuracy": (0.97, 0.75),
        "replaced found": (0.5, None),
        "replaced tokens": (0.25, None),
    }


STATE = types.SimpleNamespace(params="trained", evaluation_params="averaged")


@pytest.fixture
def job(monkeypatch):
    """A run whose evaluations, of nine batches, return the parameters and the batches."""
    batches = range(9)
    split = types.SimpleNamespace(
        batch_size=4, num_examples=36, evaluation_batches=lambda rows: batches
    )
    for module in (held_out, finetune_job):
        monkeypatch.setattr(module, "local_rows", lambda size, mesh: "rows")
    monkeypatch.setattr(
        held_out, "evaluation_batches", lambda *_, **__: contextlib.nullcontext(enumerate(batches))
    )
    monkeypatch.setattr(held_out, "evaluate", lambda step, *values: {"loss": list_batches(*values)})
    monkeypatch.setattr(
        finetune_job.train_evaluate, "predict", lambda step, *values: list_batches(*values)
    )
    pretrainer = types.SimpleNamespace(token_losses=lambda: ())
    return types.SimpleNamespace(
        held_out="text",
        phases=[types.SimpleNamespace(batch_size=4)],
        config=types.SimpleNamespace(eval_examples=0),
        examples=lambda corpus, phase: "examples",
        trainer=types.SimpleNamespace(eval_step="step", mesh="mesh", pretrainer=pretrainer),
        dataset=types.SimpleNamespace(batches={"dev": split}),
        predict_step=lambda split: "step",
        mesh="mesh",
    )


def list_batches(params, batches, *_):
    return params, list(batches)


@pytest.fixture(params=["held-out", "task"])
def evaluate(request, job):
    """`evaluate(interrupt)`: held-out evaluation, or predictions for a split of a task."""
    if request.param == "held-out":
        return lambda interrupt: pretrain._evaluate(job, interrupt, STATE)["held_out/loss"]
    return lambda interrupt: finetune_job.Job.predictions(job, STATE, interrupt, "dev")


def test_the_average_of_the_weights_is_evaluated(evaluate):
    assert evaluate(Interrupt()) == ("averaged", list(range(9)))


def test_an_evaluation_can_be_stopped_at_every_batch(evaluate, stop_after):
    for batch in range(1, 10):
        with pytest.raises(EvaluationStoppedError):
            evaluate(stop_after(batch))
    assert evaluate(stop_after(10)) == ("averaged", list(range(9)))
