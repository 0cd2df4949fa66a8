"""Curves of metric records."""

import pytest

from bertjax.reports.collect import collect
from bertjax.reports.curves import curves, split_of, thin


def of(part, split, metric):
    (curve,) = [c for c in part["curves"] if (c["split"], c["metric"]) == (split, metric)]
    return [(part["x"][row], value) for row, value in zip(curve["at"], curve["y"], strict=True)]


def test_evaluations_have_interpolated_tokens_and_hours(make_run):
    (part,) = curves(collect([str(make_run("bert"))]).runs)
    assert (part["run"], part["seed"]) == (0, None)
    assert of(part, "held_out", "mlm/loss") == [
        ([15, 200, 0.015], 3.5),
        ([20, 300, 0.02], 3.75),
    ]
    assert of(part, "training", "mlm/loss") == [([10, 100, 0.01], 4.0), ([20, 300, 0.02], 2.0)]


def test_an_evaluation_before_the_first_report_is_interpolated_from_the_start(make_run):
    records = [{"step": 5, "held_out/loss": 1.0}, {"step": 10, "loss": 2.0, "tokens": 300}]
    (part,) = curves(collect([str(make_run("bert", records=records))]).runs)
    assert part["x"][0] == [5, 150, None]


def test_values_that_are_not_finite_are_gaps(make_run):
    (part,) = curves(collect([str(make_run("bert"))]).runs)
    assert of(part, "training", "loss")[1][1] is None


def test_goodput_is_no_curve(make_run):
    (part,) = curves(collect([str(make_run("bert"))]).runs)
    assert {curve["metric"] for curve in part["curves"]} == {"loss", "mlm/loss"}


def test_tokens_that_were_not_recorded_are_null(make_run):
    (part,) = curves(collect([str(make_run("bert", records=[{"step": 3, "loss": 1.0}]))]).runs)
    assert part["x"] == [[3, None, None]]


def test_seeds_have_curves_of_their_own(make_finetuning):
    parts = curves(collect([str(make_finetuning("rte"))]).runs)
    assert [part["seed"] for part in parts] == [0, 1, 2]
    assert of(parts[2], "dev", "accuracy") == [([4, 40, pytest.approx(2 / 3600, rel=1e-4)], 0.875)]
    assert of(parts[2], "training", "accuracy")[0][1] == 0.9


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dev_mismatched/accuracy", ("dev_mismatched", "accuracy")),
        ("glue/accuracy", ("training", "accuracy")),
        ("glue/loss", ("training", "glue/loss")),
        ("loss", ("training", "loss")),
    ],
)
def test_splits_of_a_fine_tuning(make_finetuning, name, expected):
    (run,) = collect([str(make_finetuning("rte"))]).runs
    assert split_of(run, name) == expected


def test_metrics_of_a_corpus_have_its_name(make_run):
    (run,) = collect([str(make_run("bert"))]).runs
    assert split_of(run, "held_out/wiki/mlm/loss") == ("held_out", "wiki/mlm/loss")
    assert split_of(run, "developer/loss") == ("training", "developer/loss")


def test_thinned_curves_keep_their_extremes_ends_and_gaps():
    points = [(n, float(n % 7)) for n in range(1000)]
    points[400] = (400, 99.0)
    points[500] = (500, -99.0)
    points[650] = (650, None)
    thinned = thin(points, 50)
    assert len(thinned) <= 50
    assert thinned[0] == points[0]
    assert thinned[-1] == points[-1]
    assert (400, 99.0) in thinned
    assert (500, -99.0) in thinned
    assert (650, None) in thinned
    assert thinned == sorted(thinned, key=lambda point: point[0])


def test_short_curves_are_not_thinned():
    points = [(n, 1.0) for n in range(50)]
    assert thin(points, 50) == points
