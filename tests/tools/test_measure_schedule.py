"""tools/measure_schedule.py: parsing of TPU schedules, and cycles."""

import pytest

FLAT = """\
= control target key start
LB: loop body
= control target key end

     0   :  { %s1 = smov 0 }
   0x1   :  { %v2 = vld [vmem:[%s1] sm:$0xff]
base_bounds: (64, 24) }
   0x2 PF:  { %v3 = vadd.s32 1, %v2 }
"""
NESTED = """\
     0   :  { %s1 = smov 0 }
   0x1 LB: > { %s2_s4 = sphi 0 }
   0x2   : > { %v1 = vld [vmem:[%s1]]  ;;  %226 = sbr.rel (%p166_p3) target = $region36 }
   0x3 LB: >> { %v2 = vadd.s32 1, %v1 }
   0x4   : >> { %p9 = scmp.ge.s32.totalorder %s3_s5, 5 /* loop exit test */ }
   0x5   : >> { %199 = sbr.rel (!%p9) target = $region8 }
   0x6 PF: > { %p8 = scmp.ge.s32.totalorder %s2_s4, 3 /* loop exit test */ }
   0x7   : > { %198 = sbr.rel (!%p8) target = $region9 }
   0x8   :  { %v4 = vst }
"""
"""An inner loop of three bundles, five times; an outer one of four besides, three times."""
PROGRAM = """\
HloModule step, is_scheduled=true

%body (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %mask = f32[8]{0} negate(%p), metadata={op_name="layers/Dropout"}
}

%condition (q: f32[8]) -> pred[] {
  %q = f32[8]{0} parameter(0)
  ROOT %going = pred[] constant(true)
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %first = f32[8]{0} negate(%x)
  ROOT %loop = f32[8]{0} while(%first), condition=%condition, body=%body, \
backend_config={"known_trip_count":{"n":"12"}}
}
"""


@pytest.fixture(scope="module")
def tool(load_script):
    return load_script("tools/measure_schedule.py")


def test_cycles_are_bundles_times_iterations(tool):
    assert tool.cycles(FLAT) == 3
    assert tool.cycles(NESTED) == 2 + 3 * (4 + 5 * 3)


def test_parts_have_the_execution_count_of_the_program(tool, tmp_path):
    schedules = {"100-mask-71": FLAT * 9, "200-mask-71": NESTED, "300-first-9": FLAT}
    for name, text in schedules.items():
        (tmp_path / f"{name}-final_bundles.txt").write_text(text)
    (tmp_path / "100-mask-70-schedule-analysis_final_bundles.txt").write_text("Schedule analysis:")
    assert tool.parts(tmp_path) == []
    (tmp_path / "400-TLP-hlo.txt").write_text(PROGRAM)
    assert tool.parts(tmp_path) == [
        ("mask", 59, 64, 12, "layers/Dropout"),
        ("first", 3, 64, 1, ""),
    ]
