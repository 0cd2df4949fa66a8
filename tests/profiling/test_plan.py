"""Ahead-of-time plans: meshes, topologies, rooflines, errors of the compiler."""

import dataclasses
import json
import re
import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from bertjax import build
from bertjax.commands import plan
from bertjax.config import load_config, replace_fields
from bertjax.errors import UserError
from bertjax.layers import masks
from bertjax.layers.attention import attend
from bertjax.layers.attention_kernels import log_kernel_choice
from bertjax.layers.dense import PRECISIONS
from bertjax.layers.dropout import Dropout
from bertjax.profiling import plan as profiling_plan
from bertjax.profiling import traffic
from bertjax.runtime import chips
from bertjax.train import sharding


@pytest.fixture
def config():
    return profiling_plan.resolve_for_tpu(load_config("configs/bert.py:tiny", []))


def test_automatic_settings_are_resolved_for_tpus(config):
    assert (config.model.precision, config.model.unroll) == ("bfloat16", 1)


def test_a_mesh_is_parsed(config):
    mesh = profiling_plan.with_mesh(config, "data=64,fsdp=4").mesh
    assert (mesh.data, mesh.fsdp, mesh.tensor, mesh.sequence) == (64, 4, 1, 1)
    assert config.mesh.fsdp == 1


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("dta=3", "unknown axis 'dta': got dta=3, did you mean 'data'"),
        ("data=0", "expected axes and sizes such as data=64,fsdp=4"),
        ("data", "expected axes and sizes"),
    ],
)
def test_an_invalid_mesh_is_one_line(config, text, output):
    with pytest.raises(UserError, match=output):
        profiling_plan.with_mesh(config, text)


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("v5f-4", "unknown TPU version 'v5f': did you mean"),
        ("v5e-7", "unknown topology: got 'v5e-7', expected one such as v5e:2x2"),
        ("v5e", "unknown topology: got 'v5e',"),
        ("v5e:4by4", "unknown topology: got 'v5e:4by4',"),
    ],
)
def test_an_invalid_topology_is_one_line(name, output):
    with pytest.raises(UserError, match=output):
        chips.get_topology(name)


@pytest.mark.parametrize(
    ("name", "slices", "output"),
    [
        ("v5e:2x2", 0, "--slices: got 0, expected an integer >= 1"),
        ("v4-8", 2, "--slices: got 2, expected 1 for v4"),
    ],
)
def test_invalid_slices_are_one_line(name, slices, output):
    with pytest.raises(UserError, match=output):
        chips.get_topology(name, slices)


def test_traffic_between_slices_has_its_own_bandwidth():
    """3.125 GB/s between slices of v5e, 2 x 50 GB/s within one."""
    step = profiling_plan.StepPlan(None, {}, {}, flops=197e12, memory_bytes=819e9 / 4)
    between = traffic.Collective("all-reduce", traffic.SLICES, 2, 1, 3.125e9)
    within = traffic.Collective("all-gather", "data", 4, 2, 25e9)
    step = dataclasses.replace(step, collectives=(between, within))
    topology = chips.Topology("v5e:2x2", chips.CHIPS["v5e"], 2, range(8))
    assert profiling_plan._roofline(step, topology) == pytest.approx(
        {"matmuls": 1.0, "memory": 0.25, "collectives": 1.25, "step": 2.25}
    )
    assert topology.title == "2 slices of v5e:2x2"
    half = dataclasses.replace(step, flops_8bit=98.5e12, quantized="int8")
    assert profiling_plan._roofline(half, topology)["matmuls"] == pytest.approx(0.75)


def test_8_bits_are_refused_where_they_are_not_faster(config):
    changes = {"model.precision": "float8"}
    topology = chips.Topology("v6e:2x2", chips.CHIPS["v6e"], 1, range(4))
    (phase,) = build.phases(config)[:1]
    with pytest.raises(UserError, match=r"got float8, expected int8, bfloat16, .* TPU v6e"):
        profiling_plan.plan_step(replace_fields(config, changes), phase, topology, print)


def test_memory_is_the_peak_of_live_buffers():
    """Two temporaries of 8 are never live together: 8 of memory; the compiler counts 16."""
    analysis = types.SimpleNamespace(
        argument_size_in_bytes=10,
        output_size_in_bytes=13,
        alias_size_in_bytes=10,
        temp_size_in_bytes=16,
        peak_memory_in_bytes=21,
        generated_code_size_in_bytes=1,
    )
    topology = chips.Topology("tpu7x:1x1x1", chips.CHIPS["tpu7x"], 1, range(2))
    assert profiling_plan._memory_by_kind(analysis, topology) == {
        "arguments": 10,
        "temporaries": 8,
        "results": 3,
        "program": 1,
        "all": 22,
        "capacity": 96 * 2**30,
    }


def test_a_distillation_step_requires_a_teacher(config):
    with config.unlocked():
        config.objectives.soft_targets = {}
    phase, *_ = build.phases(config)
    topology = chips.Topology("", chips.CHIPS["v5e"], 1, jax.devices()[:1])
    with pytest.raises(UserError, match="objective soft_targets requires a teacher"):
        profiling_plan.plan_step(config, phase, topology, print)


@pytest.mark.parametrize(
    ("text", "needed", "capacity"),
    [
        ("Used 22.50G of 15.75G hbm. Exceeded hbm capacity by 6.75G.", 22.5, 15.75),
        ("for HLO temporaries (33.54G) exceeds available HBM (15.75G).", 33.54, 15.75),
    ],
)
def test_out_of_memory_errors_of_the_compiler_are_parsed(text, needed, capacity):
    error = jax.errors.JaxRuntimeError(f"RESOURCE_EXHAUSTED: {text}")
    found = profiling_plan._parse_out_of_memory(error)
    assert (found.needed, found.capacity) == (needed * 2**30, capacity * 2**30)


def test_other_errors_are_not_out_of_memory():
    error = jax.errors.JaxRuntimeError("INTERNAL: 1.00G of 2.00G")
    with pytest.raises(jax.errors.JaxRuntimeError):
        profiling_plan._parse_out_of_memory(error)


@pytest.mark.parametrize(("name", "full"), [("v5e-1", "v5e:1x1"), ("v5p-2", "v5p:1x1x1")])
@pytest.mark.slow
def test_a_single_chip(name, full, tpu_compiler):
    found = chips.get_topology(name)
    assert (found.name, found.chips) == (full, 1)


@pytest.mark.parametrize("kind", chips.CHIPS)
@pytest.mark.parametrize("count", [1, 8, 64])
@pytest.mark.slow
def test_every_chip_has_topologies_that_a_mesh_covers(kind, count, tpu_compiler):
    chip = chips.CHIPS[kind]
    found = chips.get_topology(f"{kind}-{count * chip.name_units_per_chip}")
    assert (found.chip, found.chips) == (chip, count)
    assert {device.device_kind for device in found.devices} <= set(chip.kinds)
    mesh = sharding.make_mesh(
        {"data": -1, "fsdp": 1, "tensor": chip.devices, "sequence": 1}, found.devices
    )
    assert mesh.shape["data"] == count


@pytest.mark.slow
def test_a_step_is_compiled_for_four_chips(tpu_compiler, capsys, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    words = ["--config", "configs/bert.py:tiny", "--topology", "v5e:2x2", "--json"]
    changes = ["data.phases=()", "data.batch_size=8", "data.max_seq_length=16"]
    changes += ["model.vocab_size=97"]
    plan.main([*words, "--mesh", "data=4", *(f"--config.{change}" for change in changes)])
    content = json.loads(capsys.readouterr().out)
    (step,) = content["steps"]
    assert (content["topology"], content["chips"], step["fits"]) == ("v5e:2x2", 4, True)
    assert 4 * step["flops"] == pytest.approx(step["model_flops"], rel=0.05)
    assert step["memory"]["all"] < step["memory"]["capacity"] == 16 * 2**30
    # The gradients of all parameters are summed over the four chips, in two or four bytes, except
    # those of position embeddings beyond the 16 tokens of a sequence.
    sent = sum(each["bytes"] for each in step["collectives"] if each["kind"] == "all-reduce")
    parameters = step["memory"]["arguments"] / 12  # with Adam's two moments
    used = parameters - 496 * 128
    assert 2 * 1.5 * used < sent < 4 * 1.6 * parameters
    assert {each["axes"] for each in step["collectives"]} == {"data"}
    assert content["run_seconds"] == pytest.approx(1e6 * step["seconds"]["step"])


@pytest.mark.parametrize(
    ("kernel", "rate", "reason"),
    [("splash", 0.0, "no attention weights in memory"), ("pallas", 0.1, "requested")],
)
@pytest.mark.slow
def test_kernels_are_compiled_for_tpus(kernel, rate, reason, tpu_compiler):
    """Local rows and heads on each of four chips, forward and backward, without communication."""
    mesh = sharding.make_mesh(
        {"data": 2, "fsdp": 1, "tensor": 2, "sequence": 1}, chips.get_topology("v5e:2x2").devices
    )
    lines = []

    class Attend(nn.Module):
        @nn.compact
        def __call__(self, query, key, value, packed_segment_ids):
            mask = masks.packed(packed_segment_ids) & masks.causal(512)
            precision, requested = PRECISIONS[query.dtype.name], kernel if rate else ""
            return attend(
                *(query, key, value, mask, Dropout(rate), precision), kernel=requested, train=True
            )

    def gradients(*arrays):
        def loss(query, key, value):
            rngs = {"dropout": jax.random.key(0)}
            output = Attend().apply({}, query, key, value, arrays[3], rngs=rngs)
            return output.astype(jnp.float32).sum()

        return jax.grad(loss, (0, 1, 2))(*arrays[:3])

    place = sharding.batch_sharding(mesh)
    heads = jax.ShapeDtypeStruct((4, 512, 2, 64), jnp.bfloat16, sharding=place)
    packed_segment_ids = jax.ShapeDtypeStruct((4, 512), jnp.int32, sharding=place)
    with log_kernel_choice(lines.append):
        function = jax.jit(sharding.on_mesh(gradients, mesh, sharding.RULES))
        program = function.lower(heads, heads, heads, packed_segment_ids).compile().as_text()
    assert lines == [f"attention of 512 tokens: {kernel}: {reason}"]
    assert program.count('custom_call_target="tpu_custom_call"') == 2
    assert not re.search(r"(bf16|f32|u16)\[[\d,]*512,512\]|u32\[[\d,]*512,128\]", program)
