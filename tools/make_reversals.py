"""Writes sequences of letters and the same backwards, as TSV: what an encoder-decoder must learn.

    python tools/make_reversals.py --out reversals

`train.tsv` has sequences of every length from --shortest to --longest but those of --unseen, all of
which are in `unseen.tsv`: `configs/reversal.py` is taught the one and measured on the other.
"""

import argparse
import pathlib
import random
import string


def main() -> None:
    """Writes both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for both files")
    parser.add_argument("--shortest", type=int, default=1)
    parser.add_argument("--longest", type=int, default=16)
    parser.add_argument(
        "--unseen", type=int, nargs="+", default=[5, 9, 13], help="lengths left out"
    )
    parser.add_argument("--letters", type=int, default=16, help="how many different ones")
    parser.add_argument("--train", type=int, default=50_000, help="sequences to learn from")
    parser.add_argument("--test", type=int, default=500, help="sequences of unseen lengths")
    options = parser.parse_args()
    chance = random.Random(0)
    seen = set(range(options.shortest, options.max_length + 1)) - set(options.unseen)
    letters = string.ascii_lowercase[: options.letters]
    options.out.mkdir(parents=True, exist_ok=True)
    for name, lengths, size in (
        ("train", sorted(seen), options.train),
        ("unseen", options.unseen, options.test),
    ):
        lines = [pair(chance, letters, lengths) for _ in range(size)]
        (options.out / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")


def pair(chance: random.Random, letters: str, lengths: list[int]) -> str:
    """A line: letters between spaces, a tab, and the same from the last to the first."""
    sequence = chance.choices(letters, k=chance.choice(lengths))
    return f"{' '.join(sequence)}\t{' '.join(reversed(sequence))}\n"


if __name__ == "__main__":
    main()
