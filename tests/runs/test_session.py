"""Advice about the precision of a run."""

import pytest

from bertjax.runs import session


@pytest.mark.parametrize(
    ("precision", "platform", "advised"),
    [
        ("bfloat16", "cpu", True),
        ("bfloat16_operands", "cpu", False),
        ("float32", "cpu", False),
        ("auto", "cpu", False),
        ("bfloat16", "tpu", False),
    ],
)
def test_activations_in_bfloat16_are_advised_against_on_cpus(precision, platform, advised):
    line = session.precision_advice({"name": "bert", "precision": precision}, platform)
    assert ("--config.model.precision=auto is faster" in line) is advised
