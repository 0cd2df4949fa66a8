"""The page as HTML: data that cannot break it, and no access to a network."""

import json
import math
import re

import pytest

from bertjax.errors import UserError
from bertjax.reports import page

HOSTILE = "</script><script>alert(1)</script><!-- & {{style}} \u2028 é"


def read(text):
    """The data of a page."""
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    return json.loads(found)


def test_values_cannot_end_the_script_element(make_run, tmp_path):
    folder = make_run("bert", note=HOSTILE)
    data = page.write([str(folder)], str(tmp_path / "report.html"))
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert len(re.findall(r"<script\b", text)) == 2
    assert len(re.findall(r"</script>", text)) == 2
    assert "alert(1)<" not in text
    assert read(text) == data
    assert json.loads(data["runs"][0]["config"])["note"] == HOSTILE


def test_embedded_json_is_the_same_json():
    assert json.loads(page.embed({"text": HOSTILE})) == {"text": HOSTILE}
    assert not set("<>&") & set(page.embed({"text": HOSTILE}))


def test_scores_that_are_not_finite_are_shown(make_finetuning, tmp_path):
    folder = make_finetuning("regression")
    results = json.loads((folder / "results.json").read_text())
    spread = {"median": math.nan, "min": 0.5, "max": math.inf}
    results["over_seeds"] = {"dev/mean_absolute_error": spread}
    results["each_seed"] = [{"scores": {"dev/mean_absolute_error": v}} for v in (0.5, math.nan)]
    (folder / "results.json").write_text(json.dumps(results))
    data = page.write([str(folder)], str(tmp_path / "report.html"))
    assert read((tmp_path / "report.html").read_text(encoding="utf-8")) == data
    ((*_, median, lowest, highest, _, each),) = data["scores"][0]["rows"]
    assert median == {"text": "nan", "value": None}  # sorted last
    assert lowest == {"text": "0.5000", "value": 0.5}
    assert highest == {"text": "inf", "value": None}
    assert each["text"] == "0.5000  nan"


def test_the_title_is_escaped():
    data = {"summary": "1 run: <b>"}
    assert "<title>bertjax report, 1 run: &lt;b&gt;</title>" in page.render(data)


def test_the_page_loads_nothing(make_run, tmp_path):
    page.write([str(make_run("bert"))], str(tmp_path / "report.html"))
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    addresses = set(re.findall(r"https?://[^\"'\s]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name space
    assert not re.search(r"""(?:src|href)=["'](?!data:)|@import|url\(""", text)


def test_a_single_run_shows_its_main_metric_first(make_run, tmp_path):
    data = page.write([str(make_run("bert"))], str(tmp_path / "report.html"))
    assert data["metric"] == "mlm/loss"
    assert data["summary"] == "1 run: 1 interrupted"


def test_the_first_metric_is_one_that_most_runs_have(make_run, make_finetuning, tmp_path):
    paths = [str(make_run("bert")), str(make_finetuning("rte")), str(make_finetuning("cola"))]
    assert page.write(paths, str(tmp_path / "report.html"))["metric"] == "loss"


def test_names_are_the_shortest_ends_that_differ():
    paths = ["a/x/run", "b/x/run", "runs/other/", "gs://bucket/runs/third"]
    assert page.name_runs(paths) == ["a/x/run", "b/x/run", "other", "third"]


def test_details_of_a_fine_tuning(make_finetuning, tmp_path):
    (run,) = page.write([str(make_finetuning("rte"))], str(tmp_path / "report.html"))["runs"]
    assert run["details"] == [
        "initialised from runs/bert",
        "scores of the last epoch of every seed",
    ]


def test_an_output_that_cannot_be_written_is_refused_first(make_run, tmp_path):
    with pytest.raises(UserError, match="cannot write"):
        page.write([str(tmp_path / "missing")], str(tmp_path))


def test_a_suite_without_runs_is_a_page(tmp_path):
    folder = tmp_path / "suite"
    folder.mkdir()
    (folder / "config.json").write_text('{"glue": {"init": "runs/bert"}}')
    data = page.write([str(folder)], str(tmp_path / "report.html"))
    assert (data["runs"], data["metric"]) == ([], "")
