"""Loading tokenizers: settings, special tokens, fingerprints, errors."""

import json
import pickle

import numpy as np
import pytest
from sentencepiece import sentencepiece_model_pb2
from tokenizers.implementations import BertWordPieceTokenizer

from bertjax.errors import UserError
from bertjax.tokenizers import definitions
from bertjax.tokenizers.sentencepiece import SentencePieceTokenizer
from bertjax.tokenizers.tokenizer import load, train

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

WORDS = [*SPECIALS, "the", "cat", "##s", "sat", "[", "]", "mask"]


@pytest.fixture
def vocab_txt(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*WORDS, ""]), encoding="utf-8")
    return path


def whitespace_wordpiece(**changes) -> dict:
    """A tokenizer.json that looks up words between spaces literally, brackets included."""
    content = {
        "version": "1.0",
        "truncation": {"max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": None,
        "added_tokens": [added(4, "[MASK]", special=True), added(11, "mask", special=False)],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {piece: n for n, piece in enumerate([*WORDS, "##MASK", "##]"])},
        },
    }
    return content | changes


def added(identity: int, piece: str, *, special: bool) -> dict:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": identity, "content": piece, "special": special} | flags


def write_json(path, content):
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_ids_are_line_numbers_and_words_fall_into_the_longest_pieces(vocab_txt):
    tokenizer = load(vocab_txt)
    assert tokenizer.kind == "wordpiece"
    assert tokenizer.vocab_size == 12
    assert tokenizer.encode_batch(["The cats sat", "", "dog"]) == [[5, 6, 7, 8], [], [1]]
    assert tokenizer.ids_to_pieces([5, 6, 7, 8]) == ["the", "cat", "##s", "sat"]
    assert tokenizer.decode([2, 5, 6, 7, 8, 4, 3]) == "[CLS] the cats sat [MASK] [SEP]"
    assert tokenizer.encode_batch([]) == []


def test_roles_and_word_starts(vocab_txt):
    tokenizer = load(vocab_txt)
    roles = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id)
    assert (*roles, tokenizer.sep_id, tokenizer.mask_id) == (0, 1, 2, 3, 4)
    assert tokenizer.special_ids == (0, 1, 2, 3, 4)
    assert tokenizer.word_starts.dtype == np.bool_
    assert np.flatnonzero(~tokenizer.word_starts).tolist() == [7]


def test_offsets(vocab_txt):
    tokenizer = load(vocab_txt)
    assert tokenizer.encode_with_offsets("the  cats") == ([5, 6, 7], [(0, 3), (5, 8), (8, 9)])


@pytest.mark.parametrize(
    ("name", "roles", "specials", "pieces", "starts"),
    [
        ("gpt2", (50256, None, None, None, None), (50256,), ["Ġthe", "the"], [True, False]),
        ("t5", (0, 2, None, 1, None), (0, 1, 2), ["▁the", "the"], [True, False]),
    ],
)
def test_released_models_without_the_usual_special_tokens(
    shared_data, name, roles, specials, pieces, starts
):
    tokenizer = load(shared_data / "vocab" / name)
    found = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id)
    assert (*found, tokenizer.sep_id, tokenizer.mask_id) == roles
    assert tokenizer.special_ids == specials
    every_piece = tokenizer.ids_to_pieces(list(range(tokenizer.vocab_size)))
    assert [tokenizer.word_starts[every_piece.index(piece)] for piece in pieces] == starts


@pytest.mark.parametrize(
    ("name", "keeps_capitals"),
    [("vocab/bert-base-uncased", False), ("vocab/bert-base-cased", True), ("kbert", False)],
)
def test_capitals_in_the_vocabulary_determine_lowercasing(shared_data, name, keeps_capitals):
    tokenizer = load(shared_data / name)
    upper, lower = tokenizer.encode_batch(["NASA", "nasa"])
    assert (upper != lower) == keeps_capitals


def test_the_config_next_to_a_vocabulary_applies_unless_overridden(vocab_txt):
    write_json(vocab_txt.with_name("tokenizer_config.json"), {"do_lower_case": False})
    assert load(vocab_txt).encode_batch(["The"]) == [[1]]
    assert load(vocab_txt.parent).encode_batch(["The"]) == [[1]]
    assert load(vocab_txt, lowercase=True).encode_batch(["The"]) == [[5]]


def test_accents_follow_the_config(vocab_txt):
    assert load(vocab_txt).encode_batch(["c\u00e4t"]) == [[6]]
    write_json(vocab_txt.with_name("tokenizer_config.json"), {"strip_accents": False})
    assert load(vocab_txt).encode_batch(["c\u00e4t"]) == [[1]]


@pytest.mark.parametrize(
    ("config", "ids"),
    [
        ({"do_lower_case": False}, [1, 6]),
        ({"do_lower_case": False, "tokenizer_class": "BertTokenizerFast"}, [1, 6]),
        ({}, [5, 6]),
        ({"do_lower_case": False, "tokenizer_class": "PreTrainedTokenizerFast"}, [5, 6]),
    ],
)
def test_the_config_next_to_a_tokenizer_json_applies_as_in_transformers(tmp_path, config, ids):
    pieces = {piece: number for number, piece in enumerate(WORDS)}
    write_json(tmp_path / "tokenizer.json", definitions.wordpiece(pieces, lowercase=True))
    write_json(tmp_path / "tokenizer_config.json", config)
    assert load(tmp_path).encode_batch(["The cat"]) == [ids]


def test_the_config_next_to_byte_level_files_adds_a_space(tmp_path):
    vocabulary = {"a": 0, "Ġ": 1, "Ġa": 2}
    write_json(tmp_path / "vocab.json", vocabulary)
    (tmp_path / "merges.txt").write_text("Ġ a\n", encoding="utf-8")
    config = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}
    write_json(tmp_path / "tokenizer_config.json", config)
    assert load(tmp_path).encode_batch(["a a"]) == [[2, 2]]


@pytest.mark.parametrize(("between", "count"), [(("[SEP]",), 1), (("[SEP]", "[SEP]"), 2), ((), 1)])
def test_the_template_determines_the_number_of_separators(tmp_path, between, count):
    pair = [{"Sequence": {"id": "A", "type_id": 0}}]
    pair += [{"SpecialToken": {"id": name, "type_id": 0}} for name in between]
    pair += [{"Sequence": {"id": "B", "type_id": 0}}]
    special = {"[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}}
    template = {"type": "TemplateProcessing", "single": pair[:1], "pair": pair}
    template |= {"special_tokens": special}
    path = write_json(tmp_path / "tokenizer.json", whitespace_wordpiece(post_processor=template))
    assert load(path).pair_separators == count
    several = {"type": "Sequence", "processors": [template]}
    path = write_json(tmp_path / "tokenizer.json", whitespace_wordpiece(post_processor=several))
    assert load(path).pair_separators == count


def test_both_names_of_a_byte_level_pair(tmp_path):
    pieces = json.dumps({"a": 0, "b": 1, "\u0120a": 2, "ab": 3, "\u0120": 4, "<|endoftext|>": 5})
    for folder, names in (
        ("openai", ["encoder.json", "vocab.bpe"]),
        ("hf", ["vocab.json", "merges.txt"]),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / names[0]).write_text(pieces)
        (tmp_path / folder / names[1]).write_text(
            "#version: 0.2\na b\n\u0120 a\n", encoding="utf-8"
        )
        for path in (tmp_path / folder, *(tmp_path / folder / name for name in names)):
            tokenizer = load(path)
            assert tokenizer.encode_batch(["ab aa"]) == [[3, 2, 0]]
            assert tokenizer.special_ids == (5,)


@pytest.mark.parametrize("share", [None, 0.0, 1.0])
def test_bpe_dropout_is_disabled(tmp_path, share):
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    pieces = {"a": 0, "b": 1, "ab": 2, "abab": 3, "<|endoftext|>": 4}
    model = {"type": "BPE", "vocab": pieces, "merges": ["a b", "ab ab"], "dropout": share}
    parts = {"pre_tokenizer": byte_level, "decoder": byte_level, "post_processor": None}
    definition = whitespace_wordpiece(model=model, added_tokens=[], **parts)
    tokenizer = load(write_json(tmp_path / "tokenizer.json", definition))
    assert tokenizer.encode_batch(["ababab", "ba"]) == [[3, 2], [1, 0]]
    assert tokenizer.encode_with_offsets("abab")[0] == [3]


def test_a_trained_token_spelled_like_a_special_one_is_text(tmp_path):
    pieces = {"<": 0, "s": 1, ">": 2, "<s": 3, "<s>": 4, "</s>": 5}
    (tmp_path / "vocab.json").write_text(json.dumps(pieces))
    (tmp_path / "merges.txt").write_text("< s\n<s >\n")
    assert load(tmp_path).special_ids == (5,)


def test_tokenizer_json_gives_ids_without_special_tokens_and_truncation(tmp_path):
    tokenizer = load(write_json(tmp_path / "tokenizer.json", whitespace_wordpiece()))
    assert tokenizer.encode_batch(["the cats sat the"]) == [[5, 6, 7, 8, 5]]


def test_tokenizer_json_and_vocab_txt_of_one_vocabulary_are_the_same(tmp_path, vocab_txt):
    path = tmp_path / "saved.json"
    BertWordPieceTokenizer.from_file(str(vocab_txt)).save(str(path))
    assert load(path).fingerprint == load(vocab_txt).fingerprint


def test_every_setting_that_changes_ids_changes_the_fingerprint(tmp_path, vocab_txt):
    definition = whitespace_wordpiece()
    shorter = definition["model"] | {"max_input_chars_per_word": 3}
    variants = [
        definition,
        whitespace_wordpiece(model=shorter),
        whitespace_wordpiece(normalizer={"type": "Lowercase"}),
        whitespace_wordpiece(added_tokens=definition["added_tokens"][:1]),
        whitespace_wordpiece(pre_tokenizer={"type": "BertPreTokenizer"}),
    ]
    prints = {load(write_json(tmp_path / "t.json", variant)).fingerprint for variant in variants}
    prints |= {load(vocab_txt, lowercase=case).fingerprint for case in (True, False)}
    assert len(prints) == len(variants) + 2


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_tokenizers_can_be_pickled(kind):
    tokenizer = train(["some words of some text"] * 9, kind=kind, vocab_size=270)
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.encode_batch(["some text"]) == tokenizer.encode_batch(["some text"])


LITERALS = "[PAD] [UNK] [CLS] [SEP] [MASK] <s> </s> <pad> <unk> <mask> <|endoftext|> <eop>"


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram", "sentencepiece_bpe"])
@pytest.mark.parametrize("lowercase", [True, False])
def test_literal_special_tokens_stay_text_when_trained_on_them(kind, lowercase):
    # sentencepiece does not learn from the literals themselves, so their letters come again.
    texts = [LITERALS, *(letter * 2 for letter in LITERALS)] * 20
    tokenizer = train(texts, kind=kind, vocab_size=320, lowercase=lowercase)
    (ids,) = tokenizer.encode_batch([LITERALS])
    assert not set(ids) & set(tokenizer.special_ids)
    spelled = tokenizer.decode(ids).replace(" ", "")
    assert spelled == (LITERALS.lower() if lowercase else LITERALS).replace(" ", "")


def test_literal_special_tokens_stay_text_when_the_whole_word_is_in_the_vocabulary(tmp_path):
    tokenizer = load(write_json(tmp_path / "tokenizer.json", whitespace_wordpiece()))
    for literal in SPECIALS:
        assert set(tokenizer.encode_batch([literal])[0]) <= {tokenizer.unk_id, 9, 12, 13}
    for copy in (tokenizer, pickle.loads(pickle.dumps(tokenizer))):
        assert copy.encode_batch(["the [MASK] mask"]) == [[5, 9, 12, 13, 11]]
        assert copy.encode_batch(["\uffff [MASK]", "\uffff[MASK]"]) == [[1, 9, 12, 13], [1]]
    assert tokenizer.mask_id == 4
    assert tokenizer.decode([5, 4]) == "the [MASK]"


def test_literal_special_tokens_stay_text_in_a_unigram_tokenizer_json(tmp_path):
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "▁", "<", ">", "/", "s", "▁a"]
    content = whitespace_wordpiece(
        added_tokens=[added(0, "<s>", special=True), added(10, "<mask>", special=True)],
        pre_tokenizer={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
        decoder={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
        model={
            "type": "Unigram",
            "unk_id": 3,
            "vocab": [[piece, 0.0 if n < 4 else -1.0 - n] for n, piece in enumerate(pieces)],
        },
    )
    tokenizer = load(write_json(tmp_path / "tokenizer.json", content))
    assert tokenizer.encode_batch(["<s>a </s>"]) == [[4, 5, 8, 6, 3, 4, 5, 7, 8, 6]]
    for sneaky in ("\uffff <s>", "\uffff<s>"):
        assert set(tokenizer.encode_batch([sneaky])[0]) <= {tokenizer.unk_id, 4, 5, 6, 8}
    assert (tokenizer.cls_id, tokenizer.pad_id, tokenizer.sep_id) == (0, 1, 2)
    assert (tokenizer.unk_id, tokenizer.mask_id, tokenizer.vocab_size) == (3, 10, 11)
    assert np.flatnonzero(tokenizer.word_starts).tolist() == [0, 1, 2, 3, 4, 9, 10]


def test_literal_special_tokens_stay_text_where_sentencepiece_has_them_user_defined():
    trained = train([f"{LITERALS} and more words"] * 20, kind="unigram", vocab_size=60)
    model = sentencepiece_model_pb2.ModelProto.FromString(trained._model)
    model.pieces.add(piece="<eop>", score=0.0, type=model.SentencePiece.USER_DEFINED)
    model.pieces.add(piece="(", score=0.0, type=model.SentencePiece.USER_DEFINED)
    tokenizer = SentencePieceTokenizer(model.SerializeToString())
    end_of_paragraph = tokenizer.vocab_size - 2
    (ids,) = tokenizer.encode_batch(["<eop> ("])
    assert end_of_paragraph in tokenizer.special_ids
    assert end_of_paragraph not in ids
    assert tokenizer.vocab_size - 1 in ids


@pytest.mark.parametrize("name", ["bert-base-uncased", "gpt2", "t5"])
def test_ids_outside_the_vocabulary_are_refused(shared_data, name):
    tokenizer = load(shared_data / "vocab" / name)
    for wrong in (tokenizer.vocab_size, -1):
        for method in (tokenizer.ids_to_pieces, tokenizer.decode):
            with pytest.raises(UserError, match=f"outside the vocabulary: got {wrong},"):
                method([5, wrong])


def files(**contents):
    def write(folder):
        for name, content in contents.items():
            path = folder / name.replace("__", ".")
            path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return write


GOOD = "\n".join(WORDS)
MODEL = json.dumps(whitespace_wordpiece())
UNMARKED = whitespace_wordpiece(model={"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []})
NO_UNKNOWN = whitespace_wordpiece(model=whitespace_wordpiece()["model"] | {"vocab": {"a": 0}})


@pytest.mark.parametrize(
    ("write", "path", "message"),
    [
        (files(), "absent", "no tokenizer at .*absent; train one with `bertjax tokenizer"),
        (files(), "", "is not a tokenizer folder: got none .*, expected one of tokenizer.json"),
        (files(a__model=b"x", b__model=b"y"), "", "got a.model, b.model"),
        (files(notes__md="x"), "notes.md", "unknown tokenizer file: got .*notes.md"),
        (files(vocab__txt=""), "", "vocab.txt is empty"),
        (
            files(vocab__txt="[UNK]\nthe\ncat\nthe\n"),
            "",
            "line 4: duplicate piece 'the', .* line 2",
        ),
        (files(vocab__txt="the\ncat\n"), "", "got no line \\[UNK\\]"),
        (files(vocab__txt=b"[UNK]\n\xff\xfe"), "", "not UTF-8 at byte 6"),
        (files(vocab__txt=GOOD, tokenizer_config__json="{"), "", "config.json is not JSON"),
        (files(vocab__txt=GOOD, tokenizer_config__json="[]"), "", "expected a JSON object"),
        (files(encoder__json='{"a": 0}'), "", "vocab.bpe is missing"),
        (files(encoder__json="[1]", vocab__bpe="a b"), "", "expected a JSON object of pieces"),
        (files(encoder__json='{"a": 0, "b": 0}', vocab__bpe="a b"), "", "to unique ids"),
        (
            files(vocab__json='{"a": 0}', merges__txt="a\n"),
            "",
            "merges.txt, line 1: got .*, expected two",
        ),
        (
            files(vocab__json='{"a": 0, "b": 1}', merges__txt="#version: 0.2\na b\n"),
            "",
            "line 2: piece 'ab' is not in",
        ),
        (files(spiece__model=b""), "", "spiece.model is empty"),
        (files(spiece__model=b"not a model" * 9), "", "is not a SentencePiece model"),
        (files(spiece__model=b"\x7a\x00"), "", "is not a SentencePiece model"),
        (files(tokenizer__json="{"), "", "tokenizer.json is not JSON"),
        (files(tokenizer__json="{}"), "", "expected a model with a vocabulary"),
        (
            files(tokenizer__json=MODEL.replace('"WordPiece"', '"Magic"')),
            "",
            "unsupported type of model: got 'Magic'",
        ),
        (
            files(tokenizer__json=MODEL.replace("WhitespaceSplit", "Telepathy")),
            "",
            "is not a valid tokenizer.json",
        ),
        (files(tokenizer__json=json.dumps(UNMARKED)), "", "do not mark the beginnings of words"),
        (files(tokenizer__json=json.dumps(NO_UNKNOWN)), "", "has no unknown token"),
    ],
)
def test_unreadable_files_are_refused_in_one_line(tmp_path, write, path, message):
    write(tmp_path)
    with pytest.raises(UserError, match=message) as caught:
        load(tmp_path / path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "contents",
    [
        {"vocab__txt": GOOD},
        {"tokenizer__json": MODEL},
        {"vocab__json": '{"a": 0, "b": 1, "ab": 2}', "merges__txt": "a b\n"},
    ],
)
def test_a_byte_order_mark_is_no_text(tmp_path, contents):
    files(**contents)(tmp_path)
    fingerprint = load(tmp_path).fingerprint
    files(**{name: f"\ufeff{content}" for name, content in contents.items()})(tmp_path)
    assert load(tmp_path).fingerprint == fingerprint


def test_lowercase_applies_to_vocab_txt_only(shared_data):
    with pytest.raises(UserError, match=r"applies only to a vocab.txt: got lowercase=True"):
        load(shared_data / "vocab" / "gpt2", lowercase=True)
