"""The folder of a tokenizer: round trip, compatibility, atomic writes."""

import json
import shutil

import pytest
import sentencepiece
import tokenizers
from tokenizers.implementations import BertWordPieceTokenizer, ByteLevelBPETokenizer

from bertjax.errors import UserError
from bertjax.tokenizers.folder import METADATA
from bertjax.tokenizers.tokenizer import KINDS, load, train

TEXTS = ["the cat sat on the mat", "the dog sat on the Cat", "caf\u00e9 on the mat, dog!"]


def trained(kind: str, **settings):
    return train(TEXTS * 5, kind=kind, vocab_size=290, **settings)


@pytest.fixture
def saved(tmp_path):
    folder = tmp_path / "vocab"
    trained("wordpiece").save(str(folder))
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip(tmp_path, kind):
    tokenizer = trained(kind)
    tokenizer.save(str(tmp_path / "deep" / "vocab"))
    loaded = load(tmp_path / "deep" / "vocab")
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.kind == kind
    assert loaded.encode_batch(TEXTS) == tokenizer.encode_batch(TEXTS)
    assert loaded.special_ids == tokenizer.special_ids
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["vocab"]


@pytest.mark.parametrize("name", ["bert-base-uncased", "bert-base-cased", "gpt2", "t5"])
def test_a_released_tokenizer_and_its_saved_folder_are_the_same(tmp_path, shared_data, name):
    released = load(shared_data / "vocab" / name)
    released.save(str(tmp_path / name))
    loaded = load(tmp_path / name)
    assert loaded.fingerprint == released.fingerprint
    assert loaded.encode_batch(TEXTS) == released.encode_batch(TEXTS)
    (tmp_path / name / METADATA).unlink()
    assert load(tmp_path / name).fingerprint == released.fingerprint


def test_saving_changes_nothing_of_a_vocabulary(tmp_path, shared_data):
    released = shared_data / "vocab" / "bert-base-uncased" / "vocab.txt"
    load(released).save(str(tmp_path / "out"))
    assert (tmp_path / "out" / "vocab.txt").read_bytes() == released.read_bytes()


@pytest.mark.parametrize("lowercase", [True, False])
def test_the_reference_loads_a_saved_wordpiece(tmp_path, lowercase):
    tokenizer = trained("wordpiece", lowercase=lowercase)
    tokenizer.save(str(tmp_path / "vocab"))
    whole = tokenizers.Tokenizer.from_file(str(tmp_path / "vocab" / "tokenizer.json"))
    by_vocabulary = BertWordPieceTokenizer.from_file(
        str(tmp_path / "vocab" / "vocab.txt"), lowercase=lowercase
    )
    for text, ids in zip(TEXTS, tokenizer.encode_batch(TEXTS), strict=True):
        framed = [tokenizer.cls_id, *ids, tokenizer.sep_id]
        assert whole.encode(text).ids == framed
        assert by_vocabulary.encode(text).ids == framed
    config = json.loads((tmp_path / "vocab" / "tokenizer_config.json").read_text())
    assert config["do_lower_case"] == lowercase
    # Unlike bertjax, the reference reads text that spells a special token as that token.
    assert tokenizer.mask_id in whole.encode("the [MASK]").ids


def test_the_reference_loads_a_saved_byte_level_bpe(tmp_path):
    tokenizer = trained("bpe")
    tokenizer.save(str(tmp_path / "vocab"))
    whole = tokenizers.Tokenizer.from_file(str(tmp_path / "vocab" / "tokenizer.json"))
    pair = [str(tmp_path / "vocab" / name) for name in ("vocab.json", "merges.txt")]
    by_pair = ByteLevelBPETokenizer.from_file(*pair)
    for text, ids in zip(TEXTS, tokenizer.encode_batch(TEXTS), strict=True):
        assert whole.encode(text).ids == [tokenizer.cls_id, *ids, tokenizer.sep_id]
        assert by_pair.encode(text).ids == ids


@pytest.mark.parametrize("kind", ["unigram", "sentencepiece_bpe"])
def test_the_reference_loads_a_saved_sentencepiece(tmp_path, kind):
    tokenizer = trained(kind, lowercase=True, strip_accents=True)
    tokenizer.save(str(tmp_path / "vocab"))
    model = str(tmp_path / "vocab" / "spiece.model")
    reference = sentencepiece.SentencePieceProcessor(model_file=model)
    assert reference.encode(TEXTS) == tokenizer.encode_batch(TEXTS)


def test_the_same_tokenizer_may_be_saved_again(saved):
    before = {path: path.stat().st_mtime_ns for path in saved.iterdir()}
    trained("wordpiece").save(str(saved))
    assert {path: path.stat().st_mtime_ns for path in saved.iterdir()} == before


def test_another_tokenizer_is_not_overwritten(saved):
    before = load(saved).fingerprint
    with pytest.raises(UserError, match="contains another tokenizer; pass another folder"):
        trained("bpe").save(str(saved))
    assert load(saved).fingerprint == before


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    for occupied in (tmp_path, tmp_path / "thesis.txt"):
        with pytest.raises(UserError, match="exists and is not a tokenizer folder"):
            trained("wordpiece").save(str(occupied))
    with pytest.raises(UserError, match="Not a directory; give another one"):
        trained("wordpiece").save(str(tmp_path / "thesis.txt" / "deep" / "vocab"))
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_the_tokenizer_of_a_run_or_corpus_is_found_in_its_folder(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "run" / "tokenizer")
    assert load(tmp_path / "run").fingerprint == load(saved).fingerprint


def test_an_empty_folder_is_filled(tmp_path):
    trained("wordpiece").save(str(tmp_path))
    assert load(tmp_path).vocab_size > 10


def test_a_failed_write_leaves_no_files(tmp_path, monkeypatch):
    written = []

    def write(path, content):
        if len(written) == 2:
            raise OSError(28, "No space left on device")
        written.append(path)

    monkeypatch.setattr("bertjax.tokenizers.folder.write_atomic", write)
    with pytest.raises(OSError, match="No space left"):
        trained("bpe").save(str(tmp_path / "vocab"))
    assert len(written) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt"])
def test_a_modified_file_is_detected(saved, name):
    path = saved / name
    path.write_text(path.read_text(encoding="utf-8").replace("cat", "cow"), encoding="utf-8")
    with pytest.raises(UserError, match=f"{name} does not match its checksum"):
        load(saved)


def test_a_missing_file_is_detected(saved):
    (saved / "vocab.txt").unlink()
    with pytest.raises(UserError, match=r"vocab.txt is missing"):
        load(saved)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 99}', '{"format": 1}'])
def test_a_damaged_description_is_detected(saved, content):
    (saved / METADATA).write_text(content)
    with pytest.raises(UserError, match="corrupt or of another version"):
        load(saved)
    with pytest.raises(UserError, match="corrupt or of another version"):
        trained("wordpiece").save(str(saved))
