"""Draws quickstart.svg: the loss of the quickstart against the unigram baseline.

    bertjax pretrain --config quickstart --workdir runs/quickstart
    python docs/images/draw_quickstart.py runs/quickstart

Without a run it draws the committed points of quickstart.json again.
"""

import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
POINTS = FOLDER / "quickstart.json"

WIDTH, HEIGHT = 720, 320
LEFT, RIGHT, TOP, BOTTOM = 56, 18, 44, 46
LOSSES = (4.0, 8.0)
TRAINED, HELD_OUT, BASELINE, TEXT = "#3949ab", "#d81b60", "#6d6d6d", "#424242"


def read_run(run: pathlib.Path) -> dict:
    """Returns the points of a run: losses in nats per masked token."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    summary = json.loads((run / "summary.json").read_text())

    def curve(name: str) -> list[list[float]]:
        return [[r["step"], round(r[name], 4)] for r in records if name in r]

    return {
        "trained": curve("mlm/loss"),
        "held_out": curve("held_out/mlm/loss"),
        "unigram": round(summary["unigram_loss"], 4),
        "tokens_per_step": summary["tokens"] // summary["steps"],
    }


def draw(points: dict) -> str:
    """Returns the picture as SVG."""
    last = points["trained"][-1][0]

    def x(step: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * step / last, 1)

    def y(loss: float) -> float:
        low, high = LOSSES
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (high - loss) / (high - low), 1)

    end = WIDTH - RIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="13" fill="{TEXT}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="24" font-size="15" font-weight="bold">'
        "Masked LM loss of the quickstart (nats per masked token)</text>",
    ]
    for loss in range(int(LOSSES[0]), int(LOSSES[1]) + 1):
        parts.append(f'<path d="M{LEFT} {y(loss)}H{end}" stroke="#e0e0e0"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(loss) + 4}" text-anchor="end">{loss}</text>')
    for step in range(0, last + 1, 200):
        anchor = "end" if step == last else "middle"
        parts.append(
            f'<text x="{x(step)}" y="{HEIGHT - BOTTOM + 18}" text-anchor="{anchor}">{step}</text>'
        )
    tokens = points["tokens_per_step"]
    parts.append(
        f'<text x="{(LEFT + end) / 2}" y="{HEIGHT - 8}" text-anchor="middle">'
        f"optimizer steps of {tokens:,} tokens</text>"
    )
    unigram = points["unigram"]
    parts += [
        f'<path d="M{LEFT} {y(unigram)}H{end}" stroke="{BASELINE}" stroke-dasharray="6 4" '
        'stroke-width="1.5"/>',
        f'<text x="{end}" y="{y(unigram) - 7}" text-anchor="end" fill="{BASELINE}">'
        f"unigram baseline, held out: {unigram:.2f}</text>",
        f'<path d="M{"L".join(f"{x(step)} {y(loss)}" for step, loss in points["trained"])}" '
        f'fill="none" stroke="{TRAINED}" stroke-width="2"/>',
        f'<text x="{x(75)}" y="{y(7.35)}" fill="{TRAINED}">training, mean of 50 steps</text>',
    ]
    for number, (step, loss) in enumerate(points["held_out"]):
        label = f"held out: {loss:.2f}" if number == 0 else f"{loss:.2f}"
        anchor = "end" if step == last else "middle"
        parts.append(f'<circle cx="{x(step)}" cy="{y(loss)}" r="5" fill="{HELD_OUT}"/>')
        parts.append(
            f'<text x="{x(step)}" y="{y(loss) - 11}" text-anchor="{anchor}" '
            f'fill="{HELD_OUT}">{label}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    """Reads a run, if one is given, and draws the picture."""
    if len(sys.argv) > 1:
        POINTS.write_text(json.dumps(read_run(pathlib.Path(sys.argv[1]))) + "\n")
    (FOLDER / "quickstart.svg").write_text(draw(json.loads(POINTS.read_text())))


if __name__ == "__main__":
    main()
