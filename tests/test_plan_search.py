"""What `bertjax plan` tries: in which order, what it ranks, and what it goes on after."""

import dataclasses

import pytest

from bertjax import build, plan_search
from bertjax.commands import plan
from bertjax.config import load_config
from bertjax.errors import UserError
from bertjax.planning import OutOfMemory, StepPlan
from bertjax.train import chips


@pytest.fixture
def config():
    return load_config("configs/bert.py:tiny", [])


def test_the_gentlest_change_that_fits_is_found(config):
    """Here: what is kept has to go, parameters have to be spread, and a batch cut in four."""
    tried = []

    def compile_step(config, phase):
        spread, parts = config.mesh.fsdp == -1, config.data.microbatches
        tried.append((config.model.remat, spread, parts))
        memory = {} if spread and parts == 4 else OutOfMemory(2.0, 1.0)
        return StepPlan(phase, {}, memory)

    assert plan_search.fitting(config, None, compile_step, print).fits
    assert tried == [
        ("dots", False, 1),
        ("dots_with_no_batch_dims", False, 1),
        ("full", False, 1),
        ("full", True, 1),
        ("full", False, 2),
        ("full", True, 2),
        ("full", False, 4),
        ("full", True, 4),
    ]


def test_a_search_cuts_the_best_mesh_into_more_parts_while_that_is_better(config):
    """Here: heads over two are best, fit in four parts without recomputation; eight win 0.4%."""
    tried = []

    def compile_step(config, phase):
        mesh, remat, parts = config.mesh, config.model.remat, config.data.microbatches
        tried.append((mesh.tensor, remat, parts))
        if remat == "none" and parts < 4:
            return StepPlan(phase, {}, OutOfMemory(8.0 / parts, 1.0))
        seconds = {"none": 1.0, "dots": 2.0, "dots_with_no_batch_dims": 3.0, "full": 4.0}[remat]
        seconds += (mesh.tensor != 2) + 0.1 * max(0, 4 - parts) - 0.001 * parts
        return StepPlan(phase, {}, {}, seconds={"step": seconds})

    found = plan_search.search(config, None, 4, compile_step, print)
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


def test_a_search_in_which_nothing_fits_goes_on_in_more_parts(config):
    def compile_step(config, phase):
        parts = config.data.microbatches
        if parts == 8:
            raise UserError("batch_size=8 does not divide")
        return StepPlan(phase, {"parts": parts}, OutOfMemory(9.0 / parts, 1.0))

    found = plan_search.search(config, None, 1, compile_step, print)
    assert [step.settings["parts"] for step in found] == [4] * 4 + [2] * 4 + [1] * 4


def by_policy(**seconds):
    """Compiles for one device; an error stands for a policy that has no step."""

    def compile_step(config, phase):
        found = seconds[config.model.remat]
        if isinstance(found, BaseException):
            raise found
        return StepPlan(phase, {"remat": config.model.remat}, {}, seconds={"step": found})

    return compile_step


def test_a_search_goes_on_where_the_compiler_dies(config):
    died = plan_search.CompilerDiedError("the compiler ended with SIGSEGV")
    lines = []
    compile_step = by_policy(none=died, dots=3.0, dots_with_no_batch_dims=2.0, full=4.0)
    found = plan_search.search(config, None, 1, compile_step, lines.append)
    assert [step.settings["remat"] for step in found[:3]] == [
        *("dots_with_no_batch_dims", "dots_with_no_batch_dims", "dots")
    ]
    assert set(lines) == {"the compiler ended with SIGSEGV"}


def test_a_way_out_is_looked_for_where_the_compiler_dies(config):
    died = plan_search.CompilerDiedError("the compiler ended with SIGSEGV")
    compile_step = by_policy(dots=died, dots_with_no_batch_dims=2.0)
    found = plan_search.fitting(config, None, compile_step, [].append)
    assert found.settings["remat"] == "dots_with_no_batch_dims"


def test_an_interrupted_search_ranks_what_it_has(config):
    lines = []
    compile_step = by_policy(none=3.0, dots=2.0, dots_with_no_batch_dims=KeyboardInterrupt())
    found = plan_search.search(config, None, 1, compile_step, lines.append)
    assert [step.settings["remat"] for step in found] == ["dots", "none"]
    assert lines == ["interrupted: this ranks what was compiled until then"]


def test_a_search_interrupted_before_it_has_anything_is_interrupted(config):
    with pytest.raises(KeyboardInterrupt):
        plan_search.search(config, None, 1, by_policy(none=KeyboardInterrupt()), print)


def test_a_search_of_what_cannot_be_is_a_mistake(config):
    def compile_step(config, phase):
        raise UserError("batch_size=7 does not divide")

    with pytest.raises(UserError, match="batch_size=7 does not divide"):
        plan_search.search(config, None, 4, compile_step, print)


def test_a_ranking_is_a_line_for_each_and_the_best_in_full(config, monkeypatch, capsys):
    phase = build.phases(config)[0]
    kinds = ("arguments", "temporaries", "results", "program", "all")
    memory = {**dict.fromkeys(kinds, 5e9), "there": 16e9}
    causes = {"products": 0.25, "memory": 0.5, "collectives": 0.0, "step": 0.5}
    first = StepPlan(phase, {"data": 4, "remat": "none"}, memory, 197e12, 197e12 / 4)
    first = dataclasses.replace(first, seconds=causes)
    second = StepPlan(phase, {"fsdp": 4, "remat": "full"}, OutOfMemory(22.5e9, 16e9))
    topology = chips.Topology("v5e:2x2", chips.CHIPS["v5e"], 1, range(4))
    monkeypatch.setattr(chips, "topology", lambda name, slices: topology)
    monkeypatch.setattr(plan, "_compiled", lambda *arguments: ([first, second], []))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    words = ["--config", "configs/bert.py:tiny", "--topology", "v5e:2x2", "--search"]
    plan.main(words)
    ranking, best = capsys.readouterr().out.split("\n\n", 1)
    assert [" ".join(line.split()) for line in ranking.splitlines()] == [
        "at least sequences/s MFU memory settings",
        f"1 500 ms {phase.batch_size * 2} 50.0% 5 GB data 4, remat none",
        "2 does not fit 22.5 GB fsdp 4, remat full",
    ]
    assert "settings    data 4, remat none\n" in best
    assert "fsdp" not in best
