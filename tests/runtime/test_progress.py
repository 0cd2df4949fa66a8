"""Progress display: a bar in a terminal, plain lines elsewhere."""

import types

import pytest

from bertjax.runtime import progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets; lines are five seconds apart."""
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 5.0)
    now = types.SimpleNamespace(seconds=100.0)
    fake = types.SimpleNamespace(monotonic=lambda: now.seconds)
    monkeypatch.setattr(progress, "time", fake)
    return now


def test_plain_lines_show_the_fraction_and_the_remaining_time(clock, capsys):
    fractions = [0.5, 0.505, 0.51, 0.52, 0.53, 0.55, 0.9, None, 0.2, 0.6]
    with progress.progress_display() as display:
        for second, fraction in enumerate(fractions):
            clock.seconds = 100 + 2.5 * second
            display.update(fraction, f"part {second}")
        display.log("an event")
    assert capsys.readouterr().err.splitlines() == [
        "51% part 2",  # too little since it began at 50%
        "53% part 4, ETA 0:02:37",
        "90% part 6, ETA 0:00:04",
        "part 7",  # a step of unknown duration, at once
        "60% part 9, ETA 0:00:02",  # since part 8
        "an event",
    ]


def test_an_unknown_fraction_has_no_estimate(clock, capsys):
    with progress.progress_display() as display:
        for second in (0, 6, 12):
            clock.seconds = 100.0 + second
            display.update(None, f"{second} texts")
    assert capsys.readouterr().err == "6 texts\n12 texts\n"


def test_a_terminal_shows_a_bar_and_events_above_it(monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with progress.progress_display() as display:
        display.update(0.25, "1 of 4 runs")
        display.log("[2/4] rte")
        shown = display._bar.tasks[0]
        assert (shown.percentage, shown.description) == (25.0, "1 of 4 runs")
    printed = capsys.readouterr().err
    assert "[2/4] rte\n" in printed
    assert "1 of 4 runs" in printed
