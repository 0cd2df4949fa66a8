"""CoNLL files: reading, tag schemes, and output for conlleval."""

import pytest

from bertjax.errors import UserError
from bertjax.metrics import entities
from bertjax.tasks.ner import conll as ner_conll

FILE = """\
-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

German JJ B-NP B-MISC
-DOCSTART- -X- -X- O

Peter NNP B-NP B-PER
Blackburn NNP I-NP I-PER
"""


@pytest.fixture
def read(tmp_path):
    def read(text, **options):
        path = tmp_path / "words.txt"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return ner_conll.read(path, **options)

    return read


def test_words_tags_documents_and_lines(read):
    first, second, third = read(FILE)
    path = first.locations[0].rpartition(":")[0]
    assert first == ner_conll.Sentence(
        words=("EU", "rejects"),
        tags=("B-ORG", "O"),
        between=(("NNP", "B-NP"), ("VBZ", "B-VP")),
        locations=(f"{path}:3", f"{path}:4"),
        document=0,
    )
    assert (second.words, second.locations, second.document) == (("German",), (f"{path}:6",), 0)
    assert (third.tags, third.document) == (("B-PER", "I-PER"), 1)
    assert third.locations == (f"{path}:9", f"{path}:10")
    assert [len(sentence) for sentence in (first, second, third)] == [2, 1, 2]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "\ufeff" + text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace(" ", "\t"),
        lambda text: text.replace(" ", " \t  "),
        lambda text: text.replace("\n", " \n"),
        lambda text: text.rstrip(),
        lambda text: text.replace("-DOCSTART- -X- -X- O", "-DOCSTART-"),
    ],
)
def test_other_spellings_of_a_file(read, change):
    assert read(change(FILE)) == read(FILE)


def test_files_without_document_marks(read):
    assert [each.document for each in read("a O\n\n\n\nb O\n")] == [0, 0]
    # Text before the first mark is a document too.
    assert [each.document for each in read("a O\n-DOCSTART- O\nb O\n-DOCSTART- O\nc O")] == [
        0,
        1,
        2,
    ]


def test_other_white_space_is_part_of_a_word(read):
    assert read("a\u00a0b\u2028c O\n")[0].words == ("a\u00a0b\u2028c",)
    assert read("\u00a0 O\n")[0].words == ("\u00a0",)


@pytest.mark.parametrize(
    ("iob1", "iob2"),
    [
        ("O I-X I-X O", "O B-X I-X O"),
        ("I-X B-X I-X B-X", "B-X B-X I-X B-X"),
        ("I-X I-Y B-Y", "B-X B-Y B-Y"),
    ],
)
def test_conversion_of_iob1_to_iob2(read, iob1, iob2):
    text = "\n".join(f"w {tag}" for tag in iob1.split())
    assert read(text)[0].tags == tuple(iob2.split())
    assert read(text, scheme="iob1")[0].tags == tuple(iob2.split())
    assert read(text, scheme="as-it-is")[0].tags == tuple(iob1.split())
    assert ner_conll.to_iob2(iob2.split()) == tuple(iob2.split())
    assert entities.extract_entities(iob1.split()) == entities.extract_entities(iob2.split())


def test_conversion_of_bioes_to_iob2(read):
    assert read("a S-X\nb B-X\nc I-X\nd E-X\ne O")[0].tags == ("B-X", "B-X", "I-X", "I-X", "O")
    assert read("a B-X\nb E-X", scheme="bioes")[0].tags == ("B-X", "I-X")


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [("O I-X", "iob1"), ("O B-X", "iob2"), ("B-X I-X", "iob2"), ("O", "iob2"), ("S-X", "bioes")],
)
def test_the_scheme_is_recognised(read, tags, scheme):
    sentences = read("\n".join(f"w {tag}" for tag in tags.split()), scheme="as-it-is")
    assert ner_conll.detect_scheme(sentences) == scheme


def test_the_tags_of_training_are_complete_and_ordered(read):
    assert ner_conll.tag_names(read(FILE)) == (
        *("O", "B-MISC", "I-MISC", "B-ORG", "I-ORG", "B-PER", "I-PER"),
    )
    assert ner_conll.tag_names(read("a O")) == ("O",)


def test_predictions_are_written_in_the_format_of_conlleval(read, tmp_path):
    sentences = read(FILE)
    path = tmp_path / "new" / "predicted.txt"
    ner_conll.write(path, sentences, [["B-ORG", "O"], ["O"], ["B-PER", "B-PER"]])
    assert path.read_bytes() == (
        b"EU NNP B-NP B-ORG B-ORG\nrejects VBZ B-VP O O\n\nGerman JJ B-NP B-MISC O\n\n"
        b"Peter NNP B-NP B-PER B-PER\nBlackburn NNP I-NP I-PER B-PER\n\n"
    )
    again = ner_conll.read(path)
    assert [each.words for each in again] == [each.words for each in sentences]
    assert again[2].between[1] == ("NNP", "I-NP", "I-PER")


@pytest.mark.parametrize(
    ("text", "scheme", "message"),
    [
        (
            "a O\nb\n",
            "auto",
            r"words\.txt:2: got 'b' alone, expected a word first and its tag last,",
        ),
        (
            "a O\nb X-Y\n",
            "auto",
            r"words\.txt:2: last column: got 'X-Y', expected a tag: O, or B-TYPE",
        ),
        ("a O\nb B-\n", "auto", r"words\.txt:2: last column: got 'B-', expected a tag: O,"),
        ("a B\n", "as-it-is", r"words\.txt:1: last column: got 'B', expected a tag: O,"),
        ("", "auto", r"words\.txt has no sentence: expected a word and its tag per line"),
        ("\n-DOCSTART- O\n", "auto", r"words\.txt has no sentence:"),
        ("a O", "iob3", r"unknown tagging scheme 'iob3': did you mean 'iob2'\?"),
        (
            "a B-X\nb O\nc I-X\n",
            "auto",
            r"words.txt:3: an entity starts with I \(IOB1\), but at .*words.txt:1 with a B",
        ),
        ("a O\nb I-X\n", "iob2", r"words\.txt:2: 'I-X' after 'O' is invalid in IOB2; fix the tag,"),
        ("a B-X\n", "iob1", r"words\.txt:1: 'B-X' after 'O' is invalid in IOB1; fix the tag, or"),
        ("a S-X\n", "iob2", r"words\.txt:1: 'S-X' after 'O' is invalid in"),
        (b"a O\n\xff O\n", "auto", r"words.txt:2: byte 0 is not UTF-8"),
    ],
)
def test_errors_name_the_line(read, text, scheme, message):
    with pytest.raises(UserError, match=message) as error:
        read(text, scheme=scheme)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"cannot read .*absent.txt: No such file"):
        ner_conll.read(tmp_path / "absent.txt")


def test_a_tag_without_training_examples_is_refused(read):
    names = ner_conll.tag_names(read(FILE))
    ner_conll.check_tags(read("a I-ORG\nb O"), names)  # only seen with B, but of a known type
    with pytest.raises(UserError, match=r"words\.txt:2: tag: got 'B-GPE', expected a tag of the"):
        ner_conll.check_tags(read("a O\nb B-GPE"), names)


def test_released_sentences(shared_data, tmp_path):
    folder = shared_data / "ner" / "conll2003"
    sentences = ner_conll.read(folder / "valid.txt")
    assert len(sentences) == 3250
    assert sum(map(len, sentences)) == 51362  # as the task's paper counts (table 1)
    assert sentences[-1].document + 1 == 216
    assert ner_conll.detect_scheme(sentences) == "iob2"
    found = entities.count_by_type(*[[each.tags for each in sentences]] * 2)
    # Table 2 of the task's paper.
    assert {kind: each.correct for kind, each in found.items()} == {
        "LOC": 1837,
        "MISC": 922,
        "ORG": 1341,
        "PER": 1842,
    }
    assert ner_conll.tag_names(sentences) == (
        *("O", "B-LOC", "I-LOC", "B-MISC", "I-MISC", "B-ORG", "I-ORG", "B-PER", "I-PER"),
    )
    # IOB1, as it was first released, gives the same again.
    old = tmp_path / "iob1.txt"
    ner_conll.write(old, sentences, [_iob1(each.tags) for each in sentences])
    assert ner_conll.detect_scheme(ner_conll.read(old, scheme="as-it-is")) == "iob1"
    assert [each.tags for each in ner_conll.read(old)] == [each.tags for each in sentences]


def _iob1(tags):
    pairs = zip(("O", *tags), tags, strict=False)
    return [tag if before[1:] == tag[1:] else tag.replace("B-", "I-", 1) for before, tag in pairs]
