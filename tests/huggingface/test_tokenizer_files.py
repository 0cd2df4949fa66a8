"""Exported tokenizers give the same ids in transformers."""

import json
import pydoc_data.topics
import re

import pytest
import tokenizers

from bertjax.huggingface import tokenizer as huggingface_tokenizer
from bertjax.inference.fill_mask import MaskFiller
from bertjax.tokenizers import tokenizer

TEXTS = [text for _, text in sorted(pydoc_data.topics.topics.items())[:30]]
PROBES = [
    *sorted({line for text in TEXTS for line in text.splitlines()})[::5],
    "Hello World, café naïve Ünï 中文 x² ﬁne\tAB",
    "  two  spaces  ",
    "",
    "☃☃ snow",
]
KINDS = [
    ("wordpiece", {}),
    ("wordpiece", {"lowercase": False, "normalization": "nfkc"}),
    ("bpe", {}),
    ("bpe", {"lowercase": True, "normalization": "nfc"}),
    ("unigram", {}),
    ("unigram", {"lowercase": True}),
    ("sentencepiece_bpe", {}),
    ("sentencepiece_bpe", {"lowercase": True, "normalization": "none"}),
]


MASKED = [
    "the [MASK] of a value",
    "[MASK] is an object",
    "a name  [MASK].",
    "two [MASK] [MASK]",
    "re[MASK]ed, [MASK]",
]


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: "-".join([kind[0], *kind[1]]))
def exported(request, tmp_path_factory):
    """A tokenizer and the folder that it was exported to."""
    kind, options = request.param
    folder = tmp_path_factory.mktemp("exported")
    trained = tokenizer.train(TEXTS, kind=kind, vocab_size=500, **options)
    huggingface_tokenizer.write(folder, trained, max_length=77, has_segments=True, cls_last=False)
    return trained, folder


def with_ends(trained, *texts):
    """Ids as a model reads them."""
    ids = [trained.cls_id]
    for text in trained.encode_batch(list(texts)):
        ids += [*text, trained.sep_id]
    return ids


def assert_same(found, expected, text):
    """Compare ids; runs of one character may be segmented in any order with an equal score."""
    if re.search(r"(.)\1\1\1", text):
        found, expected = sorted(found), sorted(expected)
    assert found == expected, text


def test_ids_are_equal(exported):
    trained, folder = exported
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in PROBES:
        assert_same(library.encode(text).ids, with_ends(trained, text), text)


@pytest.mark.slow
def test_transformers_agrees(exported):
    transformers = pytest.importorskip(
        "transformers", reason="needs transformers, of the group test-all"
    )
    trained, folder = exported
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    opened = transformers.AutoTokenizer.from_pretrained(folder)
    for text in PROBES:
        assert_same(opened(text)["input_ids"], with_ends(trained, text), text)
    assert opened.model_max_length == 77
    filler = MaskFiller(None, None, trained, max_length=77, cls_last=False, top_k=1)
    for text in MASKED:
        masked = text.replace("[MASK]", opened.mask_token)
        found = opened(masked, add_special_tokens=False)["input_ids"]
        assert found == filler._encode(1, text), text
    for role in ("pad", "unk", "cls", "sep", "mask"):
        assert getattr(opened, f"{role}_token_id") == getattr(trained, f"{role}_id")
    assert {"input_ids", "token_type_ids", "attention_mask"} == set(opened.model_input_names)


def test_only_files_of_transformers_are_written(exported):
    _, folder = exported
    names = {path.name for path in folder.iterdir()} - {"config.json"}
    assert {"tokenizer.json", "tokenizer_config.json"} <= names
    known = {"vocab.txt", "vocab.json", "merges.txt", "spiece.model"}
    assert names <= known | {"tokenizer.json", "tokenizer_config.json"}


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_a_template_with_cls_last(kind, tmp_path):
    trained = tokenizer.train(TEXTS, kind=kind, vocab_size=500)
    huggingface_tokenizer.write(
        tmp_path, trained, max_length=float("inf"), has_segments=True, cls_last=True
    )
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    a, b = trained.encode_batch(["the name", "a value"])
    sep, cls = trained.sep_id, trained.cls_id
    assert library.encode("the name").ids == [*a, sep, cls]
    both, between = library.encode("the name", "a value"), trained.pair_separators
    assert between == (2 if kind == "bpe" else 1)
    assert both.ids == [*a, *[sep] * between, *b, sep, cls]
    segments = [*[0] * (len(a) + 1), *[1] * (between - 1 + len(b) + 1), 2]
    assert both.type_ids == segments
    words = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert words["padding_side"] == "left"
    assert "model_max_length" not in words


def test_a_mask_token_has_the_ids_of_bertjax_fill(exported):
    """The mask token includes the preceding space."""
    trained, folder = exported
    filler = MaskFiller(None, None, trained, max_length=77, cls_last=False, top_k=1)
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    (mask,) = trained.ids_to_pieces([trained.mask_id])
    for text in MASKED:
        found = library.encode(text.replace("[MASK]", mask), add_special_tokens=False).ids
        assert found == filler._encode(1, text), text
        assert found.count(trained.mask_id) == text.count("[MASK]")
