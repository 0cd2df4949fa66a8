"""Tables of runs and of scores."""

import json

import pytest

from bertjax.reports import tables
from bertjax.reports.collect import collect

STARTS = [
    {"command": "bertjax pretrain", "device": "TPU v4", "num_devices": 4},
    {"command": "bertjax pretrain", "device": "TPU v5 lite", "num_devices": 8},
]


def run_table(*folders):
    runs = collect([str(folder) for folder in folders]).runs
    return tables.run_tables(runs, [folder.name for folder in folders])


def column(table, name):
    (number,) = [n for n, column in enumerate(table["columns"]) if column["name"] == name]
    return [row[number]["text"] for row in table["rows"]]


def columns(table, group):
    return [column["name"] for column in table["columns"] if column["group"] == group]


def test_only_differing_fields_are_columns(make_run):
    (table,) = run_table(make_run("a"), make_run("b", learning_rate=0.5, seed=1))
    assert columns(table, "config") == ["optimizer.learning_rate", "seed"]
    assert column(table, "optimizer.learning_rate") == ["0.001", "0.5"]
    assert column(table, "seed") == ["-", "1"]


def test_one_run_has_no_differing_fields(make_run):
    (table,) = run_table(make_run("a"))
    assert columns(table, "config") == []
    assert "differences" not in table


def test_many_differing_fields_of_few_runs_are_rows(make_run):
    fields = {f"field_{n}": n for n in range(9)}
    (table,) = run_table(make_run("a", **fields), make_run("b"))
    assert columns(table, "config") == []
    assert table["differences"]["header"] == ["config field", "a", "b"]
    rows = [[cell["text"] for cell in row] for row in table["differences"]["rows"]]
    assert rows == [[name, str(value), "-"] for name, value in fields.items()]


def test_metrics_of_a_run(make_run):
    (table,) = run_table(make_run("a"))
    # The newest loss is not finite.
    assert columns(table, "metrics") == ["best held_out/mlm/loss", "held_out/mlm/loss"]
    assert column(table, "best held_out/mlm/loss") == ["3.5000"]
    assert column(table, "held_out/mlm/loss") == ["3.7500"]
    assert column(table, "state") == ["interrupted"]
    assert column(table, "steps") == ["20 / 30"]


def test_runs_with_different_main_metrics_name_them(make_run):
    other = make_run("b", best_metric="loss", best_mode="min")
    (table,) = run_table(make_run("a"), other)
    assert column(table, "metric") == ["held_out/mlm/loss", "loss"]
    assert column(table, "best") == ["3.5000", "5.0000"]


def test_costs_of_a_run(make_run):
    records = [
        {"step": 5, "tokens": 1000, "seconds": 5000.0, "tokens_per_second": speed}
        for speed in (1.0, 30.0, 2000.0)
    ]
    folder = make_run("a", records=[*records, {"step": 5, "goodput": 0.875}])
    (folder / "starts.jsonl").write_text("".join(json.dumps(start) + "\n" for start in STARTS))
    (table,) = run_table(folder)
    assert column(table, "tokens") == ["1,000"]
    assert column(table, "time") == ["1:23 h"]
    assert column(table, "tokens/s") == ["30"]
    assert column(table, "goodput") == ["87.5%"]
    assert column(table, "device") == ["8 x TPU v5 lite"]
    assert "MFU" not in columns(table, "costs")


def test_costs_of_seeds_are_added(make_finetuning):
    (table,) = run_table(make_finetuning("rte"))
    assert column(table, "tokens") == ["120"]
    assert column(table, "time") == ["6 s"]


def test_kinds_have_tables_of_their_own(make_run, make_finetuning):
    first, second = run_table(make_finetuning("rte"), make_run("bert"))
    assert (first["title"], first["runs"]) == ("Pretraining", [1])
    assert (second["title"], second["runs"]) == ("Fine-tuning", [0])


def test_scores_have_median_and_spread_over_seeds(make_finetuning, make_run):
    runs = collect([str(make_run("bert")), str(make_finetuning("rte"))]).runs
    table = tables.score_table(runs, ["bert", "rte"])
    assert table["runs"] == [1, 1]
    rows = [[cell["text"] for cell in row] for row in table["rows"]]
    assert rows == [
        ["rte", "rte", "dev/score", *SPREAD, "3", "0.7500  0.5000  1.0000"],
        ["rte", "rte", "dev/accuracy", *ACCURACY, "3", "0.6250  0.5000  0.8750"],
    ]
    assert tables.score_table(runs[:1], ["bert"]) is None


SPREAD = ("0.7500", "0.5000", "1.0000")
ACCURACY = ("0.6250", "0.5000", "0.8750")


def test_long_values_are_shortened_and_kept_in_full(make_run):
    text = "x" * 50
    (table,) = run_table(make_run("a", note=text), make_run("b", note=[1, 2]))
    assert column(table, "note") == ["x" * 40 + "…", "[1, 2]"]
    assert [row[-1].get("title") for row in table["rows"]] == [text, None]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(59.6, "60 s"), (119, "119 s"), (121, "2 min"), (3660, "1:01 h"), (183845, "2 d 3:04 h")],
)
def test_durations(seconds, text):
    assert tables.duration(seconds) == text


def test_an_imported_model_is_no_interrupted_run(make_run):
    folder = make_run("released", records=[], imported={"name": "bert-base"}, num_train_steps=0)
    (run,) = collect([str(folder)]).runs
    assert (tables.state(run), run.note) == ("imported", "imported, not trained")
