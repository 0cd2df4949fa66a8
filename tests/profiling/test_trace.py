"""Shares of the time of a step: kinds of operations, and when they ran."""

import pytest

from bertjax.profiling import hlo, trace
from bertjax.profiling.trace import Interval

BLOCK = "jit(train_step)/jvp(Pretrainer)/encoder/layers/block"
TEXT = f"""\
HloModule jit_train_step, is_scheduled=true

%fused (p: f32[8,8]) -> f32[8,8] {{
  %p = f32[8,8]{{1,0}} parameter(0)
  %product = f32[8,8]{{1,0}} dot(%p, %p), metadata={{op_name="{BLOCK}/attention/bhlm/dot_general"}}
  ROOT %half = f32[8,8]{{1,0}} divide(%product, %p), metadata={{op_name="{BLOCK}/attention/div"}}
}}

ENTRY %main (x: f32[8,8]) -> f32[8,8] {{
  %x = f32[8,8]{{1,0}} parameter(0), metadata={{op_name="x"}}
  %query = f32[8,8]{{1,0}} dot(%x, %x), metadata={{op_name="{BLOCK}/attention/attention._heads/query/dot_general"}}
  %scores = f32[8,8]{{1,0}} fusion(%query), kind=kOutput, calls=%fused, metadata={{op_name="{BLOCK}/attention/div"}}
  %softmax = f32[8,8]{{1,0}} exponential(%scores), metadata={{op_name="{BLOCK}/attention/exp"}}
  %mask = f32[8,8]{{1,0}} multiply(%softmax, %x), metadata={{op_name="{BLOCK}/attention/Dropout_0/mul"}}
  %gemm = f32[8,8]{{1,0}} custom-call(%mask), custom_call_target="__cublas$gemm", metadata={{op_name="{BLOCK}/feed_forward/dot_general"}}
  %kernel = f32[8,8]{{1,0}} custom-call(%gemm), custom_call_target="__cudnn$fmhaSoftmax"
  %sum = f32[8,8]{{1,0}} all-reduce(%kernel), to_apply=%fused
  %log = f32[8,8]{{1,0}} log(%sum), metadata={{op_name="jit(train_step)/jvp(Pretrainer)/mlm.loss/log"}}
  %update = f32[8,8]{{1,0}} add(%log, %x), metadata={{op_name="jit(train_step)/optimizer/add"}}
  ROOT %copy = f32[8,8]{{1,0}} copy(%update)
}}
"""  # noqa: E501 - as XLA writes it


def test_operations_have_the_kind_of_their_source_operation():
    assert trace.kinds_of(hlo.parse(TEXT)) == {
        "query": "matmul",
        "scores": "attention",
        "softmax": "attention",
        "mask": "dropout",
        "gemm": "matmul",
        "kernel": "attention",
        "sum": "collective",
        "log": "loss",
        "update": "optimizer",
        "copy": "other",
    }


def test_waiting_is_the_time_without_an_operation():
    found = trace.shares(
        [
            Interval(10, 30, "matmul"),
            Interval(20, 40, "attention"),  # at the same time as a part of the matmul
            Interval(22, 24, "other"),
            Interval(50, 60, "matmul"),
        ]
    )
    # Busy from 10 to 40 and from 50 to 60, for 52 seconds of operations.
    assert found["idle"] == pytest.approx(0.2)
    assert found["matmul"] == pytest.approx(0.8 * 30 / 52)
    assert found["attention"] == pytest.approx(0.8 * 20 / 52)
    assert found["dropout"] == 0
    assert sum(found.values()) == pytest.approx(1)
