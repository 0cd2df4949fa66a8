"""Analysis of HLO programs: execution counts, collectives, memory traffic."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from bertjax.profiling import hlo, traffic

TEXT = """\
HloModule jit_step, is_scheduled=true

%fused (p.0: f32[5,7,11], p.1: s32[]) -> f32[1,7,11] {
  %p.0 = f32[5,7,11]{2,1,0:T(8,128)} parameter(0)
  %p.1 = s32[]{:T(128)} parameter(1)
  %zero = s32[]{:T(128)} constant(0)
  ROOT %slice = f32[1,7,11]{2,1,0:T(8,128)} dynamic-slice(%p.0, %p.1, %zero, %zero), dynamic_slice_sizes={1,7,11}
}

%body (arg: (s32[], f32[5,7,11])) -> (s32[], f32[5,7,11]) {
  %arg = (s32[]{:T(128)}, f32[5,7,11]{2,1,0:T(8,128)}) parameter(0)
  %count = s32[]{:T(128)} get-tuple-element(%arg), index=0
  %stack = f32[5,7,11]{2,1,0:T(8,128)} get-tuple-element(%arg), index=1
  %layer = f32[1,7,11]{2,1,0:T(8,128)} fusion(%stack, %count), kind=kLoop, calls=%fused
  %fast = f32[1,7,11]{2,1,0:T(8,128)S(1)} negate(%layer)
  %sum = (f32[1,7,11]{2,1,0:T(8,128)S(1)}, /*index=1*/bf16[13]{0:T(256)S(1)}) all-reduce(%fast, %fast), channel_id=4, replica_groups=mesh['axis_0'=2,'axis_1'=3] {'axis_1'}, use_global_device_ids=true, to_apply=%add
  ROOT %next = (s32[]{:T(128)}, f32[5,7,11]{2,1,0:T(8,128)}) tuple(%count, %stack)
}

%condition (arg.1: (s32[], f32[5,7,11])) -> pred[] {
  %arg.1 = (s32[]{:T(128)}, f32[5,7,11]{2,1,0:T(8,128)}) parameter(0)
  %count.1 = s32[]{:T(128)} get-tuple-element(%arg.1), index=0
  %five = s32[]{:T(128)} constant(5)
  ROOT %less = pred[]{:T(512)} compare(%count.1, %five), direction=LT
}

ENTRY %main (x: f32[5,7,11]) -> f32[5,7,11] {
  %x = f32[5,7,11]{2,1,0:T(8,128)} parameter(0), metadata={op_name="x"}
  %nought = s32[]{:T(128)} constant(0)
  %start = (s32[]{:T(128)}, f32[5,7,11]{2,1,0:T(8,128)}) tuple(%nought, %x)
  %loop = (s32[]{:T(128)}, f32[5,7,11]{2,1,0:T(8,128)}) while(%start), condition=%condition, body=%body
  %out = f32[5,7,11]{2,1,0:T(8,128)} get-tuple-element(%loop), index=1
  ROOT %doubled = f32[5,7,11]{2,1,0:T(8,128)} add(%out, %out), metadata={op_name="jit(step)/add"}
}
"""  # noqa: E501 - as XLA writes it
INNER = "fusion(%stack, %count), kind=kLoop, calls=%fused"
LAYER = 7 * 11 * 4
STACK = 5 * LAYER


def test_instructions_are_parsed():
    program = hlo.parse(TEXT)
    assert program.entry == "main"
    layer = program.computations["body"]["layer"]
    assert (layer.opcode, layer.operands, layer.callees) == (
        "fusion",
        ("stack", "count"),
        ["fused"],
    )
    both = program.computations["body"]["sum"].arrays
    assert [(each.dtype, each.dims, each.bytes) for each in both] == [
        ("f32", (1, 7, 11), LAYER),
        ("bf16", (13,), 26),
    ]
    assert not any(each.in_memory for each in both)
    assert program.computations["main"]["doubled"].origin == "jit(step)/add"


def test_an_instruction_may_have_several_lines():
    """Pallas kernels have JSON in their metadata, of which a line starts with a brace."""
    metadata = 'kernel_metadata={\n  "name": "splash"\n}}, metadata={op_name="jit(step)/kernel"}'
    program = hlo.parse(TEXT.replace("calls=%fused", f"calls=%fused, attributes={{{metadata}"))
    assert program.computations["body"].keys() == hlo.parse(TEXT).computations["body"].keys()
    assert program.computations["body"]["layer"].origin == "jit(step)/kernel"
    assert traffic.count_bytes_moved(program) == traffic.count_bytes_moved(hlo.parse(TEXT)) > 0


def test_a_computation_on_another_core_ends_before_the_next_one():
    text = """
%on_sparse_core (x: s32[8]) -> s32[8] {
  ROOT %x = s32[8]{0} parameter(0)
}, execution_thread="sparsecore"

%fused (y: s32[8]) -> s32[8] {
  ROOT %y = s32[8]{0} parameter(0)
}
"""
    assert set(hlo.parse(text).computations) == {"on_sparse_core", "fused"}


def test_trip_counts_come_from_the_loop_condition():
    runs = hlo.parse(TEXT).runs
    assert (runs["main"], runs["body"], runs["fused"]) == (1, 5, 5)


def test_a_loop_over_a_stack_reads_one_layer_per_iteration():
    """The loop also counts, and negates the layer in faster memory; at the end all is added."""
    in_loop = LAYER + 4 + LAYER + LAYER
    counting = 4 + 4 + 1
    expected = 5 * (in_loop + counting) + 3 * STACK
    assert traffic.count_bytes_moved(hlo.parse(TEXT)) == expected


def with_layer_fusion(*lines: str) -> str:
    """The program, with another fusion in its loop and the computation that it calls."""
    return TEXT.replace("%body (arg", "\n".join(lines) + "\n\n%body (arg", 1)


def test_nested_fusions_read_only_a_slice():
    """The outer one hands the stack on, once as it is and once under another shape."""
    outer = with_layer_fusion(
        "%outer (q.0: f32[5,7,11], q.1: s32[]) -> f32[1,7,11] {",
        "  %q.0 = f32[5,7,11]{2,1,0:T(8,128)} parameter(0)",
        "  %q.1 = s32[]{:T(128)} parameter(1)",
        "  %same = f32[5,7,11]{2,1,0:T(8,128)} bitcast(%q.0)",
        "  %part = f32[1,7,11]{2,1,0} fusion(%same, %q.1), kind=kLoop, calls=%fused",
        "  ROOT %twice = f32[1,7,11]{2,1,0:T(8,128)} negate(%part)",
        "}",
    ).replace(INNER, "fusion(%stack, %count), calls=%outer")
    moved = traffic.count_bytes_moved(hlo.parse(TEXT))
    assert traffic.count_bytes_moved(hlo.parse(outer)) == moved
    # A fusion that uses the whole stack reads it whole.
    whole = outer.replace("negate(%part)", "add(%part, %q.0)")
    assert traffic.count_bytes_moved(hlo.parse(whole)) == moved + 5 * (STACK - LAYER)


def test_a_copy_in_a_fusion_counts_only_the_slice_that_is_read():
    """For instance where the tiling differs between the loop and its body."""
    text = with_layer_fusion(
        "%tiles (t.0: f32[5,7,11]) -> f32[5,7,11] {",
        "  %t.0 = f32[5,7,11]{2,1,0:T(32,128)} parameter(0)",
        "  ROOT %retiled = f32[5,7,11]{2,1,0:T(8,128)} copy(%t.0)",
        "}",
        "",
        "%outer (q.0: f32[5,7,11], q.1: s32[]) -> f32[1,7,11] {",
        "  %q.0 = f32[5,7,11]{2,1,0:T(32,128)} parameter(0)",
        "  %q.1 = s32[]{:T(128)} parameter(1)",
        "  %same = f32[5,7,11]{2,1,0:T(8,128)} fusion(%q.0), kind=kLoop, calls=%tiles",
        "  ROOT %part = f32[1,7,11]{2,1,0} dynamic-slice(%same, %q.1, %q.1, %q.1)",
        "}",
    ).replace(INNER, "fusion(%stack, %count), calls=%outer")
    moved = traffic.count_bytes_moved(hlo.parse(TEXT))
    assert traffic.count_bytes_moved(hlo.parse(text)) == moved
    # Alone in a fusion it reads all, and no number of a layer.
    whole = text.replace("calls=%outer", "calls=%tiles")
    assert traffic.count_bytes_moved(hlo.parse(whole)) == moved + 5 * (STACK - LAYER - 4)


def test_nested_fusions_write_only_a_slice():
    text = with_layer_fusion(
        "%update (u.0: f32[5,7,11], u.1: f32[1,7,11], u.2: s32[]) -> f32[5,7,11] {",
        "  %u.0 = f32[5,7,11]{2,1,0:T(8,128)} parameter(0)",
        "  %u.1 = f32[1,7,11]{2,1,0:T(8,128)} parameter(1)",
        "  %u.2 = s32[]{:T(128)} parameter(2)",
        "  ROOT %put = f32[5,7,11]{2,1,0} dynamic-update-slice(%u.0, %u.1, %u.2, %u.2, %u.2)",
        "}",
        "",
        "%outer (q.0: f32[5,7,11], q.1: f32[1,7,11], q.2: s32[]) -> f32[5,7,11] {",
        "  %q.0 = f32[5,7,11]{2,1,0:T(8,128)} parameter(0)",
        "  %q.1 = f32[1,7,11]{2,1,0:T(8,128)} parameter(1)",
        "  %q.2 = s32[]{:T(128)} parameter(2)",
        "  ROOT %in = f32[5,7,11]{2,1,0:T(8,128)} fusion(%q.0, %q.1, %q.2), calls=%update",
        "}",
    ).replace(
        "  ROOT %next",
        "  %new = f32[5,7,11]{2,1,0} fusion(%stack, %layer, %count), calls=%outer\n  ROOT %next",
    )
    moved = traffic.count_bytes_moved(hlo.parse(TEXT))
    # Reads a layer and a number, and writes the layer, five times.
    assert traffic.count_bytes_moved(hlo.parse(text)) == moved + 5 * (2 * LAYER + 4)


@pytest.mark.parametrize(("place", "times"), [("S(1)", 1), ("", 2)])
def test_an_asynchronous_slice_is_moved_once(place, times):
    """From main memory to faster memory, or back."""
    part = f"f32[2,7,11]{{2,1,0:T(8,128){place}}}"
    text = TEXT.replace(
        "  %nought",
        f"  %begun = ((f32[5,7,11]{{2,1,0:T(8,128)}}), {part}, s32[]{{:S(2)}}) slice-start(%x), "
        f"slice={{[0:2], [0:7], [0:11]}}\n  %ended = {part} slice-done(%begun)\n  %nought",
    )
    moved = traffic.count_bytes_moved(hlo.parse(TEXT))
    assert traffic.count_bytes_moved(hlo.parse(text)) == moved + times * 2 * LAYER


def test_collectives_are_named_by_mesh_axes():
    (found,) = traffic.find_collectives(hlo.parse(TEXT), {"data": 2, "fsdp": 3})
    assert (found.kind, found.axes, found.devices, found.times) == ("all-reduce", "fsdp", 3, 5)
    assert found.bytes == pytest.approx(5 * 2 * 2 / 3 * 2 * LAYER)


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        ("{{0,1,2},{3,4,5}}", "fsdp"),
        ("{{0,3},{1,4},{2,5}}", "data"),
        ("[2,3]<=[6]", "fsdp"),
        ("[3,2]<=[2,3]T(1,0)", "data"),
        ("[1,6]<=[6]", "data+fsdp"),
        ("mesh['a'=2,'b'=3] {'a'}", "data"),
        ("mesh['a'=2,'b'=3] {'a','b'}", "data+fsdp"),
        ("mesh['a'=3,'b'=2], device_ids=([2,3]T(1,0)) {'b'}", "data"),
        ("mesh['a'=3,'b'=2], device_ids=([2,3]T(1,0)) {'a'}", "fsdp"),
        ("mesh['a'=3,'b'=2], device_ids=(0,3,1,4,2,5) {'b'}", "data"),
        ("{{0,4},{1,5},{2,3}}", traffic.OTHER),
    ],
)
def test_groups_are_parsed_in_every_notation(groups, axes):
    text = TEXT.replace("mesh['axis_0'=2,'axis_1'=3] {'axis_1'}", groups)
    (found,) = traffic.find_collectives(hlo.parse(text), {"data": 2, "fsdp": 3, "tensor": 1})
    assert found.axes == axes


def test_traffic_between_slices_is_separate():
    """A device sends it to its host, which sums over the slices 2, 5, 6 and 7."""
    lines = TEXT.splitlines()
    lines.insert(
        -3,
        "  %sent = (f32[5,7,11]{2,1,0:T(8,128)}, u32[], token[]) send(%x), channel_id=9, "
        'is_host_transfer=true, frontend_attributes={_xla_megascale_target="{2,5:7}x{0:5}",'
        '_xla_megascale_transfer_type="ALL_REDUCE"}',
    )
    program = hlo.parse("\n".join(lines))
    within, found = traffic.find_collectives(program, {"data": 2, "fsdp": 3})
    assert (within.axes, found.axes) == ("fsdp", traffic.SLICES)
    assert (found.kind, found.devices, found.times) == ("all-reduce", 4, 1)
    assert found.bytes == 2 * 3 / 4 * STACK


def test_explicit_collectives_share_a_channel():
    line = next(line for line in TEXT.splitlines() if "all-reduce(" in line)
    twice = TEXT.replace(line, "\n".join([line, line.replace("%sum", "%sum.2")]))
    (one,) = traffic.find_collectives(hlo.parse(TEXT), {"data": 2, "tensor": 3})
    assert traffic.find_collectives(hlo.parse(twice), {"data": 2, "tensor": 3}) == [one, one]


def test_a_decomposed_collective_counts_once():
    again = TEXT.replace(
        "  %nought", TEXT.splitlines()[15].replace("%sum", "%part") + "\n  %nought"
    )
    assert again.count("channel_id=4") == 2
    assert len(traffic.find_collectives(hlo.parse(again), {"data": 2, "fsdp": 3})) == 1


def test_the_largest_arrays_have_their_origin():
    (size, dtype, dims, origin), *_ = traffic.find_largest_arrays(hlo.parse(TEXT), 2)
    assert (size, dtype, dims, origin) == (STACK, "f32", (5, 7, 11), "jit(step)/add")


def test_a_compiled_program_of_this_machine():
    """A compiled loop with three sums over a mesh axis."""
    kinds = (AxisType.Auto,) * 3
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=kinds)

    def place(*axes):
        return NamedSharding(mesh, PartitionSpec(*axes))

    def loop(weights, x):
        def layer(x, weight):
            x = jax.lax.with_sharding_constraint(x, place(None, "fsdp"))
            return jax.lax.with_sharding_constraint(jnp.tanh(x @ weight), place()), None

        return jax.lax.scan(layer, x, weights)[0]

    shapes = np.zeros((3, 8, 8), np.float32), np.zeros((5, 8), np.float32)
    placed = jax.jit(loop, in_shardings=(place(None, "fsdp"), place()), out_shardings=place())
    program = hlo.parse(placed.lower(*shapes).compile().as_text())
    found = traffic.find_collectives(program, mesh.shape)
    sums = [each for each in found if each.kind == "all-reduce"]
    assert [(each.axes, each.devices, each.times) for each in sums] == [("fsdp", 2, 3)]
    assert sums[0].bytes == 3 * 5 * 8 * 4
