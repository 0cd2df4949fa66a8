"""bertjax report: runs of an earlier version and unfinished runs in one page."""

import json
import pathlib
import re
import shutil
import subprocess

import pytest

from bertjax import cli

SAVED = pathlib.Path(__file__).parents[1] / "data_fixtures" / "saved_runs"


@pytest.fixture
def run_cli(capsys):
    def run(*words):
        status = cli.main(["report", *map(str, words)])
        return status, *capsys.readouterr()

    return run


def read(path):
    text = path.read_text(encoding="utf-8")
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    return json.loads(data)


def test_a_pretraining_and_a_fine_tuning(run_cli, tmp_path):
    output = tmp_path / "new" / "report.html"
    status, out, errors = run_cli(SAVED / "run", SAVED / "finetuned", "--output", output)
    assert (status, errors) == (0, "")
    assert out == f"{output}: 2 runs: 2 finished\n"
    data = read(output)
    assert [run["name"] for run in data["runs"]] == ["run", "finetuned"]
    assert [table["title"] for table in data["tables"]] == ["Pretraining", "Fine-tuning"]
    assert {part["run"] for part in data["parts"]} == {0, 1}
    splits = {curve["split"] for part in data["parts"] for curve in part["curves"]}
    assert splits == {"training", "held_out", "dev"}
    assert [row[2]["text"] for row in data["scores"][0]["rows"]] == ["dev/accuracy", "dev/score"]


def test_a_run_without_metrics_is_listed_with_a_note(run_cli, tmp_path):
    folder = tmp_path / "fresh"
    folder.mkdir()
    shutil.copy(SAVED / "run" / "config.json", folder)
    status, _, errors = run_cli(folder, "--output", tmp_path / "report.html")
    assert (status, errors) == (0, f"{folder}: no metrics yet\n")
    assert read(tmp_path / "report.html")["runs"][0]["note"] == "no metrics yet"


def test_an_existing_page_is_replaced(run_cli, tmp_path):
    output = tmp_path / "report.html"
    output.write_text("old")
    assert run_cli(SAVED / "run", "--output", output)[0] == 0
    assert read(output)["runs"]


def test_errors_are_one_line(run_cli, tmp_path):
    status, _, errors = run_cli(
        SAVED / "run", SAVED / "vocab", "--output", tmp_path / "report.html"
    )
    assert status == 2
    assert errors == (
        f"bertjax report: error: no config.json in {SAVED / 'vocab'}: expected the --workdir of a "
        "bertjax pretrain, finetune, sweep or suite\n"
    )
    assert not (tmp_path / "report.html").exists()


CHECK = """
<script>
const errors = [];
addEventListener("error", (event) => errors.push(event.message));
addEventListener("load", () => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const press = (key) => all("#plot svg")[0].dispatchEvent(new KeyboardEvent("keydown", {key}));
  press("ArrowRight");
  const found = {curves: all("#plot .curve").length, spoken: all("#spoken")[0].textContent};
  const sort = all("#runs thead button").find((button) => button.textContent === "seed");
  sort.click();
  found.rising = all("#runs tbody th").map((cell) => cell.textContent);
  sort.click();
  found.falling = all("#runs tbody th").map((cell) => cell.textContent);
  found.order = all("#runs th[aria-sort]").map((cell) => cell.getAttribute("aria-sort"));
  all("#legend input[type=checkbox]")[0].click();
  found.fewer = all("#plot .curve").length;
  all("#controls [value='1']")[0].click();
  found.axis = all("#plot text").at(-1).textContent;
  const root = document.documentElement;
  found.fits = root.scrollWidth <= root.clientWidth;
  found.config = all("details pre").at(-1).textContent;
  found.dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const style = getComputedStyle(document.body);
  found.colors = [style.color, style.backgroundColor];
  document.documentElement.replaceChildren(JSON.stringify({...found, errors}));
});
</script>
"""


def luminance(color):
    """The relative luminance of `rgb(R, G, B)` (WCAG 2.1)."""
    shares = [int(number) / 255 for number in re.findall(r"\d+", color)[:3]]
    linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
    return sum(weight * one for weight, one in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_the_page_in_a_browser(run_cli, tmp_path, scheme):
    """Curves, keyboard, sorting, legend, axes, colors; nothing is wider than a phone."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        pytest.skip("no Chromium is installed")
    text = "</script><b>bold</b>"
    folders = []
    for seed in (5, 11):
        folders.append(tmp_path / f"run_{seed}")
        shutil.copytree(SAVED / "run", folders[-1], ignore=shutil.ignore_patterns("checkpoints"))
        config = json.loads((folders[-1] / "config.json").read_text())
        (folders[-1] / "config.json").write_text(json.dumps(config | {"seed": seed, "note": text}))
    output = tmp_path / "report.html"
    assert run_cli(*folders, "--output", output)[0] == 0
    page = output.read_text(encoding="utf-8")
    output.write_text(page.replace("<title>", f"{CHECK}<title>", 1), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=390,900"]
    options.append(f"--blink-settings=preferredColorScheme={int(scheme == 'light')}")
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    done = subprocess.run(
        [browser, *options, profile, "--virtual-time-budget=5000", "--dump-dom", output.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    (shown,) = re.findall(r"\{.*\}", done.stdout, re.S)
    found = json.loads(shown.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert found["errors"] == []
    assert found["curves"] == 4  # training and held-out curves of two runs
    assert found["spoken"].startswith("run_5, training mlm/loss: 5.")
    assert (found["rising"], found["falling"]) == (["run_5", "run_11"], ["run_11", "run_5"])
    assert found["order"] == ["descending"]
    assert (found["fewer"], found["axis"], found["fits"]) == (2, "tokens", True)
    assert json.loads(found["config"])["note"] == text
    assert found["dark"] == (scheme == "dark")
    text_light, background_light = map(luminance, found["colors"])
    assert (text_light > background_light) == (scheme == "dark")
    light, dark = max(text_light, background_light), min(text_light, background_light)
    assert (light + 0.05) / (dark + 0.05) >= 4.5
