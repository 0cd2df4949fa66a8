"""The search of `bertjax plan`: order of trials, ranking, compiler failures."""

import dataclasses
import shlex

import pytest

from bertjax import build
from bertjax.commands import plan
from bertjax.config import load_config, replace_fields, split_overrides
from bertjax.errors import UserError
from bertjax.overrides import apply_overrides
from bertjax.profiling import search
from bertjax.profiling.plan import OutOfMemory, StepPlan
from bertjax.runtime import chips

PHASE = build.Phase(100, 512, 256)


@pytest.fixture
def config():
    return load_config("configs/bert.py:tiny", [])


def not_fitting(config, needed=4.0):
    return [StepPlan(phase, {}, OutOfMemory(needed, 1.0)) for phase in build.phases(config)]


def test_a_phase_that_does_not_fit_gets_more_microbatches(config):
    """The second phase requires eight microbatches with any remat policy."""
    config = replace_fields(config, {"data.phases": ((900, 128, 256), (100, 512, 256, 2))})
    config = replace_fields(config, {"num_train_steps": 1000})
    tried = []

    def compile_step(config, phase):
        tried.append((config.model.remat, phase.max_seq_length, phase.microbatches))
        memory = {} if phase.microbatches == 8 else OutOfMemory(8 / phase.microbatches, 1.0)
        return StepPlan(phase, {}, memory)

    first, second = build.phases(config)
    steps = [StepPlan(first, {}, {}), StepPlan(second, {}, OutOfMemory(4.0, 1.0))]
    found = search.find_fitting(config, steps, compile_step, print)
    assert found[0] is steps[0]
    assert (found[1].fits, found[1].phase.microbatches) == (True, 8)
    assert tried == [("none", 512, 4), ("none", 512, 8)]


def test_if_microbatches_do_not_suffice_remat_and_then_sharding_is_tried(config):
    """Parameters need half of the memory, so that more microbatches are futile."""
    tried = []

    def compile_step(config, phase):
        spread = config.mesh.fsdp == -1
        tried.append((config.model.remat, spread, phase.microbatches))
        needed = 2.0 + 2.0 / phase.microbatches if phase.microbatches < 4 else 2.95
        return StepPlan(phase, {}, {} if spread else OutOfMemory(needed, 1.0))

    config = replace_fields(config, {"data.phases": ()})
    (found,) = search.find_fitting(config, not_fitting(config), compile_step, print)
    assert found.fits
    policies = ("dots", "dots_with_no_batch_dims", "full")
    assert tried == [
        *(("none", False, parts) for parts in (2, 4)),
        *((policy, False, parts) for policy in policies for parts in (1, 2, 4)),
        ("full", True, 1),
    ]


def test_all_phases_have_one_mesh_and_one_remat_policy(config):
    """The long phase requires `full`, so the short one, which fits without it, gets it as well."""
    config = replace_fields(config, {"data.phases": ((900, 128, 256), (100, 512, 256))})
    config = replace_fields(config, {"num_train_steps": 1000})

    def compile_step(config, phase):
        fits = phase.max_seq_length == 128 or config.model.remat == "full"
        settings = {"remat": config.model.remat}
        return StepPlan(phase, settings, {} if fits else OutOfMemory(4.0, 1.0))

    steps = [compile_step(config, phase) for phase in build.phases(config)]
    found = search.find_fitting(config, steps, compile_step, print)
    assert [step.settings["remat"] for step in found] == ["full", "full"]


def test_nothing_fits(config):
    config = replace_fields(config, {"data.phases": ()})

    def compile_step(config, phase):
        return StepPlan(phase, {}, OutOfMemory(4.0, 1.0))

    assert search.find_fitting(config, not_fitting(config), compile_step, print) is None


@pytest.mark.parametrize(
    ("changes", "settings", "parts", "words"),
    [
        ({"data.phases": ()}, {"data": 8}, [1], []),
        (
            {"data.phases": ()},
            {"data": 4, "tensor": 2, "remat": "dots"},
            [4],
            ["mesh.tensor=2", "model.remat=dots", "data.microbatches=4"],
        ),
        ({"data.phases": (), "mesh.data": 8}, {"fsdp": 8}, [1], ["mesh.data=1", "mesh.fsdp=8"]),
        ({}, {"data": 8}, [2, 2], ["data.microbatches=2"]),
        ({}, {"data": 8}, [4], ["data.phases='((9,128,256,1),(1,512,256,4),)'"]),
        (
            {"data.phases": ((9, 128, 256, 1), (1, 512, 256, 2))},
            {"data": 8},
            [4, 4],
            ["data.phases='((9,128,256,4),(1,512,256,4),)'"],
        ),
        ({}, {"data": 8}, [2, 4], ["data.phases='((9,128,256,2),(1,512,256,4),)'"]),
    ],
)
def test_overrides_of_the_found_settings(config, changes, settings, parts, words):
    phases = ((9, 128, 256), (1, 512, 256))
    config = replace_fields(config, {"num_train_steps": 10, "data.phases": phases})
    config = replace_fields(config, changes)
    planned = build.phases(config)[-len(parts) :]
    steps = [
        StepPlan(dataclasses.replace(phase, microbatches=number), {"remat": "none"} | settings, {})
        for phase, number in zip(planned, parts, strict=True)
    ]
    found = search.to_overrides(config, steps)
    assert found == [f"--config.{word}" for word in words]
    _, overrides = split_overrides(shlex.split(" ".join(found)))
    with config.unlocked():
        apply_overrides(config, overrides)
    assert [phase.microbatches for phase in build.phases(config)][-len(parts) :] == parts
    assert search.to_overrides(config, steps) == []


def test_a_search_adds_microbatches_to_the_best_mesh_while_that_helps(config):
    """Heads over two devices are best and fit in four microbatches; eight gain only 0.4%."""
    tried = []

    def compile_step(config, phase):
        mesh, remat, parts = config.mesh, config.model.remat, phase.microbatches
        tried.append((mesh.tensor, remat, parts))
        if remat == "none" and parts < 4:
            return StepPlan(phase, {}, OutOfMemory(8.0 / parts, 1.0))
        seconds = {"none": 1.0, "dots": 2.0, "dots_with_no_batch_dims": 3.0, "full": 4.0}[remat]
        seconds += (mesh.tensor != 2) + 0.1 * max(0, 4 - parts) - 0.001 * parts
        return StepPlan(phase, {}, {}, seconds={"step": seconds})

    found = search.search(config, PHASE, 4, compile_step, print)
    assert {sizes for sizes, *_ in tried} == {1, 2}
    assert [each for each in tried if each[2] > 1] == [
        *((2, remat, 2) for remat in ("none", "dots")),
        *((2, remat, 4) for remat in ("none", "dots")),
        (2, "none", 8),
    ]
    assert [step.fits for step in found] == sorted((step.fits for step in found), reverse=True)
    seconds = [step.seconds["step"] for step in found if step.fits]
    assert seconds[0] == pytest.approx(0.992)
    assert seconds == sorted(seconds)


def test_a_search_in_which_nothing_fits_adds_microbatches(config):
    def compile_step(config, phase):
        parts = phase.microbatches
        if parts == 8:
            raise UserError("batch_size=8 does not divide")
        return StepPlan(phase, {"parts": parts}, OutOfMemory(9.0 / parts, 1.0))

    found = search.search(config, PHASE, 1, compile_step, print)
    assert [step.settings["parts"] for step in found] == [4] * 4 + [2] * 4 + [1] * 4


def by_policy(**seconds):
    """A fake compiler for one device; an exception as the result of a policy is raised."""

    def compile_step(config, phase):
        found = seconds[config.model.remat]
        if isinstance(found, BaseException):
            raise found
        return StepPlan(phase, {"remat": config.model.remat}, {}, seconds={"step": found})

    return compile_step


def test_a_search_continues_after_a_compiler_crash(config):
    died = search.CompilerDiedError("the compiler ended with SIGSEGV")
    lines = []
    compile_step = by_policy(none=died, dots=3.0, dots_with_no_batch_dims=2.0, full=4.0)
    found = search.search(config, PHASE, 1, compile_step, lines.append)
    assert [step.settings["remat"] for step in found[:3]] == [
        *("dots_with_no_batch_dims", "dots_with_no_batch_dims", "dots")
    ]
    assert set(lines) == {"the compiler ended with SIGSEGV"}


def test_other_settings_are_tried_after_a_compiler_crash(config):
    died = search.CompilerDiedError("the compiler ended with SIGSEGV")
    lines = []
    compile_step = by_policy(none=died, dots=died, dots_with_no_batch_dims=2.0)
    config = replace_fields(config, {"data.phases": ()})
    (found,) = search.find_fitting(config, not_fitting(config), compile_step, lines.append)
    assert (found.settings["remat"], found.phase.microbatches) == ("dots_with_no_batch_dims", 1)
    assert set(lines) == {"the compiler ended with SIGSEGV"}


def test_an_interrupted_search_ranks_its_results(config):
    lines = []
    compile_step = by_policy(none=3.0, dots=2.0, dots_with_no_batch_dims=KeyboardInterrupt())
    found = search.search(config, PHASE, 1, compile_step, lines.append)
    assert [step.settings["remat"] for step in found] == ["dots", "none"]
    assert lines == ["interrupted: ranking the steps compiled so far"]


def test_a_search_without_results_raises_the_interrupt(config):
    with pytest.raises(KeyboardInterrupt):
        search.search(config, PHASE, 1, by_policy(none=KeyboardInterrupt()), print)


def test_if_nothing_compiles_the_error_is_raised(config):
    def compile_step(config, phase):
        raise UserError("batch_size=7 does not divide")

    with pytest.raises(UserError, match="batch_size=7 does not divide"):
        search.search(config, PHASE, 4, compile_step, print)


def test_a_ranking_has_one_line_per_setting_and_the_best_in_full(config, monkeypatch, capsys):
    phase = build.phases(config)[0]
    kinds = ("arguments", "temporaries", "results", "program", "all")
    memory = {**dict.fromkeys(kinds, 5e9), "capacity": 16e9}
    causes = {"matmuls": 0.25, "memory": 0.5, "collectives": 0.0, "step": 0.5}
    first = StepPlan(phase, {"data": 4, "remat": "none"}, memory, 197e12, 197e12 / 4)
    first = dataclasses.replace(first, seconds=causes)
    second = StepPlan(phase, {"fsdp": 4, "remat": "full"}, OutOfMemory(22.5e9, 16e9))
    topology = chips.Topology("v5e:2x2", chips.CHIPS["v5e"], 1, range(4))
    monkeypatch.setattr(chips, "get_topology", lambda name, slices: topology)
    monkeypatch.setattr(plan, "_compile", lambda *arguments: ([first, second], []))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    plan.main(["--config", "configs/bert.py:tiny", "--topology", "v5e:2x2", "--search"])
    ranking, best = capsys.readouterr().out.split("\n\n", 1)
    assert [" ".join(line.split()) for line in ranking.splitlines()] == [
        "at least sequences/s MFU memory settings",
        f"1 500 ms {phase.batch_size * 2} 50.0% 5 GB data 4, remat none",
        "2 does not fit 22.5 GB fsdp 4, remat full",
    ]
    assert "settings    data 4, remat none\n" in best
    assert "fsdp" not in best
