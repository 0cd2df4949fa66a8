"""Writes pairs of letter sequences and their reversals as TSV, to train an encoder-decoder.

    python tools/make_reversals.py --out reversals

`train.tsv` has sequences of the lengths from --min_length to --max_length except those of --unseen,
which are the lengths of `unseen.tsv`: `configs/reversal.py` trains on the first file and evaluates
on the second.
"""

import argparse
import pathlib
import random
import string


def main() -> None:
    """Writes both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for both files")
    parser.add_argument("--min_length", type=int, default=1)
    parser.add_argument("--max_length", type=int, default=16)
    parser.add_argument(
        "--unseen", type=int, nargs="+", default=[5, 9, 13], help="lengths of the test file"
    )
    parser.add_argument("--letters", type=int, default=16, help="size of the alphabet")
    parser.add_argument("--train", type=int, default=50_000, help="number of training sequences")
    parser.add_argument("--test", type=int, default=500, help="number of test sequences")
    options = parser.parse_args()
    rng = random.Random(0)
    seen = set(range(options.min_length, options.max_length + 1)) - set(options.unseen)
    letters = string.ascii_lowercase[: options.letters]
    options.out.mkdir(parents=True, exist_ok=True)
    for name, lengths, size in (
        ("train", sorted(seen), options.train),
        ("unseen", options.unseen, options.test),
    ):
        lines = [pair(rng, letters, lengths) for _ in range(size)]
        (options.out / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")


def pair(rng: random.Random, letters: str, lengths: list[int]) -> str:
    """A TSV line: space-separated letters, a tab, and the letters in reverse order."""
    sequence = rng.choices(letters, k=rng.choice(lengths))
    return f"{' '.join(sequence)}\t{' '.join(reversed(sequence))}\n"


if __name__ == "__main__":
    main()
