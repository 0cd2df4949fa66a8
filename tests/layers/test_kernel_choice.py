"""The attention kernel for a platform, shapes and types, and the reason."""

import dataclasses

import pytest

from bertjax.errors import UserError
from bertjax.layers.attention_kernels import AttentionSpec, choose

TPU = AttentionSpec("tpu", 512, 512, 64, "bfloat16")
GPU = AttentionSpec("gpu", 512, 512, 64, "bfloat16")


@pytest.mark.parametrize(
    ("case", "changes", "requested", "kernel", "reason"),
    [
        (TPU, {}, "", "splash", "no attention weights in memory"),
        (TPU, {"dtype": "float32"}, "", "splash", "no attention weights in memory"),
        (TPU, {"queries": 128}, "", "xla", "splash is used for 256 tokens or more"),
        (TPU, {"queries": 128}, "splash", "splash", "requested"),
        (
            TPU,
            {"queries": 500},
            "splash",
            "xla",
            "splash requires multiples of 128 tokens, got 500",
        ),
        (TPU, {"keys": 700}, "", "xla", "multiples of 128 tokens, got 512 and 700"),
        (
            TPU,
            {"dropout": 0.1},
            "",
            "xla",
            "splash does not support dropout of the weights, got 0.1; pallas does, but was",
        ),
        (TPU, {"dropout": 0.1, "queries": 128}, "pallas", "pallas", "requested"),
        (TPU, {}, "pallas", "splash", "requested"),
        (TPU, {"dropout": 0.1, "keys": 2176}, "pallas", "xla", "pallas requires 2048 keys or"),
        (TPU, {"dropout": 0.1, "head_width": 160}, "pallas", "xla", "of 128 or less, got 512 of"),
        (TPU, {"dropout": 0.1, "keys": 500}, "pallas", "xla", "pallas requires multiples of 128"),
        (TPU, {"dropout": 0.1, "pairs": True}, "pallas", "xla", "pallas supports padding, packed"),
        (TPU, {"dropout": 0.1, "local": True}, "pallas", "xla", "which xla computes in blocks"),
        (TPU, {"dropout": 0.1, "counters": False}, "pallas", "xla", "requires keys of threefry"),
        (TPU, {"pairs": True}, "", "xla", "causal and local masks, not arbitrary matrices"),
        (TPU, {"sharded": True}, "", "xla", "sequences that are sharded over devices"),
        (TPU, {"bias": True}, "splash", "xla", "splash is not used with biases of the scores"),
        (TPU, {}, "xla", "xla", "requested"),
        (GPU, {}, "", "cudnn", "no attention weights in memory"),
        (GPU, {"pairs": True}, "", "cudnn", "no attention weights in memory"),
        (GPU, {"dtype": "float32"}, "", "xla", "cudnn requires bfloat16 or float16, got float32"),
        (
            GPU,
            {"head_width": 20},
            "",
            "xla",
            "a head width of 8, 16, ... 128, got 20",
        ),
        (
            GPU,
            {"head_width": 136},
            "",
            "xla",
            "a head width of 8, 16, ... 128, got 136",
        ),
        (GPU, {"keys": 513}, "", "xla", "cudnn requires even lengths, got 512 and 513"),
        (GPU, {"dropout": 0.1}, "cudnn", "xla", "cudnn does not support dropout"),
        (GPU, {"queries": 128}, "", "cudnn", "no attention weights in memory"),
        (GPU, {"queries": 126}, "", "xla", "cudnn is used for 128 tokens or more"),
        (TPU, {"platform": "cpu"}, "", "xla", "there is no kernel for cpu"),
        (TPU, {"platform": "cpu"}, "splash", "splash", "requested"),
        (TPU, {"platform": "cpu", "dropout": 0.1}, "pallas", "pallas", "requested"),
    ],
)
def test_kernel_selection(case, changes, requested, kernel, reason):
    chosen, why = choose(dataclasses.replace(case, **changes), requested)
    assert chosen == kernel
    assert reason in why


@pytest.mark.parametrize(
    ("case", "requested", "output"),
    [
        (TPU, "flash", "attention_kernel: got 'flash'; did you mean 'splash'"),
        (TPU, "cudnn", "got 'cudnn', a kernel for gpu, expected one for tpu, .*; leave it empty"),
        (GPU, "splash", "got 'splash', a kernel for tpu, expected one for gpu"),
        (GPU, "pallas", "got 'pallas', a kernel for tpu, expected one for gpu"),
    ],
)
def test_an_unsupported_kernel_is_one_line(case, requested, output):
    with pytest.raises(UserError, match=output):
        choose(case, requested)
