"""Folders of XNLI and MLDoc in the released layouts, with invented examples."""

import pytest

HEADER = "language\tgold_label\tsentence1_parse\tsentence1\tsentence2\tpairID"
PAIRS = {
    "en": [("It is old.", 'It is "new.', "contradiction"), ("It is old.", "It is.", "entailment")],
    "de": [("Es ist alt.", "Es ist neu.", "contradiction"), ("Es ist alt.", "Ja.", "neutral")],
}
TRAIN = {
    "en": [("It rained.", "It was wet.", "entailment"), ("It rained.", "No.", "contradictory")],
    "de": [("Es regnet.", "Es ist nass.", "entailment"), ("Es regnet.", "Oslo.", "neutral")],
}
NEWS = {
    "english": [("CCAT", "The firm grew."), ("GCAT", "The king came."), ("MCAT", "Prices fell.")],
    "german": [("MCAT", "Die Preise fielen."), ("CCAT", "Die Firma wuchs.")],
}


@pytest.fixture
def xnli(tmp_path):
    folder = tmp_path / "xnli"
    (folder / "XNLI-1.0").mkdir(parents=True)
    (folder / "XNLI-MT-1.0" / "multinli").mkdir(parents=True)
    rows = [
        f"{language}\t{label}\t( a )\t{first}\t{second}\t{number}"
        for language, pairs in PAIRS.items()
        for number, (first, second, label) in enumerate(pairs)
    ]
    for split in ("dev", "test"):
        (folder / "XNLI-1.0" / f"xnli.{split}.tsv").write_text("\n".join([HEADER, *rows]) + "\n")
    for language, pairs in TRAIN.items():
        lines = ["premise\thypo\tlabel", *map("\t".join, pairs)]
        path = folder / "XNLI-MT-1.0" / "multinli" / f"multinli.train.{language}.tsv"
        path.write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def mldoc(tmp_path):
    folder = tmp_path / "mldoc"
    folder.mkdir()
    for language, rows in NEWS.items():
        for name in ("train.1000", "dev", "test"):
            (folder / f"{language}.{name}").write_text("\n".join(map("\t".join, rows)) + "\n")
    return folder
