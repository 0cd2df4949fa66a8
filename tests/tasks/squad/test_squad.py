"""Reading SQuAD's layout: both versions, other languages, and errors."""

import json

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.tasks.squad import files as squad_files
from bertjax.tasks.squad.files import UNKNOWN

CONTEXT = '\ufeffNiña said:\r\n\t"one"  two\u00a0three 👩\u200d🔬 four.'


def question(identity, text, answers=(), **more):
    """A question as in the files; answers are (text, start)."""
    listed = [{"text": answer, "answer_start": start} for answer, start in answers]
    return {"id": identity, "question": text, "answers": listed, **more}


def content():
    """Two articles and three paragraphs, one of them without questions."""
    first = [
        question("q1", "How many?", [("one", CONTEXT.index("one")), ("two", CONTEXT.index("two"))]),
        question("q2", "Who?\r\n", is_impossible=True, plausible_answers=[{"text": "x"}]),
    ]
    chinese = "北京是中国的首都。"
    return {
        "version": "v2.0",
        "data": [
            {
                "title": 'A "title"',
                "paragraphs": [
                    {"context": "Nobody asks.", "qas": []},
                    {"context": CONTEXT, "qas": first},
                ],
            },
            {
                "paragraphs": [
                    {
                        "context": chinese,
                        "qas": [question("q3", "首都在哪里", [("北京", 0)], is_impossible=False)],
                    }
                ]
            },
        ],
    }


def written(tmp_path, data):
    path = tmp_path / "set.json"
    path.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
    return path


def test_columns(tmp_path):
    found = squad_files.read(written(tmp_path, content()))
    assert found.ids == ["q1", "q2", "q3"]
    assert found.titles == ['A "title"', 'A "title"', ""]
    assert found.questions == ["How many?", "Who?\r\n", "首都在哪里"]
    assert found.contexts == [CONTEXT, "北京是中国的首都。"]
    assert found.context_of.tolist() == [0, 0, 1]
    assert found.answers == [("one", "two"), (), ("北京",)]
    assert found.answer_starts == [(CONTEXT.index("one"), CONTEXT.index("two")), (), (0,)]
    assert found.impossible.tolist() == [False, True, False]
    assert (found.labelled, found.left_out, len(found)) == (True, (), 3)
    assert found.references() == {"q1": ("one", "two"), "q2": (), "q3": ("北京",)}


def test_answers_have_character_offsets(tmp_path):
    data = content()
    start = CONTEXT.index("  two")
    data["data"][0]["paragraphs"][1]["qas"][0] = question("q1", "?", [("  two\u00a0", start)])
    found = squad_files.read(written(tmp_path, data))
    assert found.first_answers().tolist() == [
        [start + 2, start + 5],
        [UNKNOWN, UNKNOWN],
        [0, 2],
    ]


def test_texts_are_unchanged(tmp_path):
    """With any spelling in the file: escaped, UTF-8, with a byte order mark, or raw."""
    plain = squad_files.read(written(tmp_path, content()))
    unescaped = json.dumps(content(), ensure_ascii=False, indent=1)
    raw = unescaped.replace("\\t", "\t").replace("\\r\\n", "\r\n")
    for text in (unescaped, "\ufeff" + unescaped, unescaped.replace("\n", "\r\n"), raw):
        again = squad_files.read(written(tmp_path, text.encode()))
        assert again.contexts == plain.contexts == [CONTEXT, "北京是中国的首都。"]
        assert again.questions == plain.questions
        assert again.answers == plain.answers


def test_a_test_split_may_lack_answers(tmp_path):
    data = content()
    for article in data["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                question.pop("answers"), question.pop("is_impossible", None)
    path = written(tmp_path, data)
    with pytest.raises(UserError, match=r"set.json: question 'q1' has no 'answers': got 'id',"):
        squad_files.read(path)
    found = squad_files.read(path, labelled=False)
    assert not found.labelled
    assert found.answers == found.answer_starts == [(), (), ()]
    assert not found.impossible.any()
    assert (found.first_answers() == UNKNOWN).all()


def test_a_test_split_may_have_answers(tmp_path):
    found = squad_files.read(written(tmp_path, content()), labelled=False)
    assert found.labelled
    assert found.answers[0] == ("one", "two")


def misplaced(tmp_path):
    """The second answer of the first question has an offset that is one too large."""
    data = content()
    data["data"][0]["paragraphs"][1]["qas"][0]["answers"][1]["answer_start"] += 1
    return written(tmp_path, data)


def test_a_misplaced_answer_is_an_error(tmp_path):
    place = CONTEXT.index("two") + 1
    line = (
        "set.json: 1 of 3 questions have an answer that is not at its answer_start, the "
        f"first is 'q1': at {place} got 'wo\\xa0', expected 'two'; fix the file, or skip such "
        "questions in training with on_mismatch='skip'"
    )
    with pytest.raises(UserError) as caught:
        squad_files.read(misplaced(tmp_path))
    assert str(caught.value).endswith(line)


@pytest.mark.parametrize("start", [-1, -4, 10_000])
def test_an_offset_outside_the_context_is_misplaced(tmp_path, start):
    data = content()
    data["data"][1]["paragraphs"][0]["qas"][0]["answers"][0]["answer_start"] = start
    with pytest.raises(UserError, match=rf"'q3': at {start} got '', expected '北京'"):
        squad_files.read(written(tmp_path, data))


def test_a_negative_offset_is_misplaced(tmp_path):
    data = content()
    qas = data["data"][1]["paragraphs"][0]["qas"]
    qas[0] = question("q3", "?", [("首都。", -3)])
    with pytest.raises(UserError, match=r"'q3': at -3 got '', expected '首都。'; fix the file,"):
        squad_files.read(written(tmp_path, data))


def test_a_long_misplaced_answer_is_shortened(tmp_path):
    data = content()
    text = "x" * 50
    data["data"][1]["paragraphs"][0]["qas"][0] = question("q3", "?", [(text, 0)])
    with pytest.raises(UserError, match=rf"at 0 got .*, expected '{'x' * 37}\.\.\.'"):
        squad_files.read(written(tmp_path, data))


def test_a_misplaced_answer_is_skipped_or_kept(tmp_path):
    path = misplaced(tmp_path)
    skipped = squad_files.read(path, on_mismatch="skip")
    assert (skipped.ids, skipped.left_out) == (["q2", "q3"], ("q1",))
    assert (len(skipped.contexts), skipped.context_of.tolist()) == (2, [0, 1])
    kept = squad_files.read(path, on_mismatch="keep")
    assert (kept.ids, kept.left_out) == (["q1", "q2", "q3"], ())
    assert kept.answers[0] == ("one", "two")
    assert kept.answer_starts[0] == (CONTEXT.index("one"), UNKNOWN)
    with pytest.raises(UserError, match=r"unknown on_mismatch='skp': did you mean 'skip'\?"):
        squad_files.read(path, on_mismatch="skp")


def test_a_file_without_valid_questions_is_refused(tmp_path):
    data = {"data": [{"paragraphs": [{"context": "x", "qas": [question("q", "?", [("y", 0)])]}]}]}
    with pytest.raises(UserError, match=r"an answer that is not at its answer_start, so all"):
        squad_files.read(written(tmp_path, data), on_mismatch="skip")


def change(path, value):
    """Set a value deep in the content; `Ellipsis` deletes the key."""
    data = content()
    node = data
    for step in path[:-1]:
        node = node[step]
    if value is ...:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return data


ARTICLE = ("data", 0)
PARAGRAPH = (*ARTICLE, "paragraphs", 1)
ASKED = (*PARAGRAPH, "qas", 0)
ANSWER = (*ASKED, "answers", 1)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("data",), ..., r"the file has no 'data': got 'version', expected SQuAD's layout"),
        (("data",), {}, r"the file: 'data': got an object, expected a list"),
        (("data",), [], r"has no questions: expected data\[\]\.paragraphs\[\]\.qas\[\]"),
        (ARTICLE, 3, r"data\[0\]: got a whole number, expected an object with 'paragraphs'"),
        ((*ARTICLE, "paragraphs"), ..., r"data\[0\] has no 'paragraphs': got 'title'"),
        ((*ARTICLE, "title"), None, r"data\[0\]: 'title': got null, expected text"),
        (
            PARAGRAPH,
            [],
            r"data\[0\]\.paragraphs\[1\]: got a list, expected an object with 'context'",
        ),
        ((*PARAGRAPH, "context"), ..., r"data\[0\]\.paragraphs\[1\] has no 'context'"),
        (
            (*PARAGRAPH, "context"),
            "\r\n \u00a0",
            r"question 'q1': data\[0\]\.paragraphs\[1\]\.context is",
        ),
        ((*PARAGRAPH, "qas"), ..., r"data\[0\]\.paragraphs\[1\] has no 'qas': got 'context'"),
        (ASKED, "q", r"paragraphs\[1\]\.qas\[0\]: got text, expected an object with 'id'"),
        ((*ASKED, "id"), ..., r"qas\[0\] has no 'id': got 'question', 'answers'"),
        ((*ASKED, "id"), 7, r"qas\[0\]: 'id': got a whole number, expected text"),
        (
            (*ASKED, "id"),
            "q3",
            r"data\[1\]\.paragraphs\[0\]\.qas\[0\] has the id 'q3' of data\[0\]",
        ),
        ((*ASKED, "question"), ..., r"question 'q1' has no 'question'"),
        (
            (*ASKED, "question"),
            "\ud83d",
            r"'question': got half of a surrogate pair \(\\ud83d\) at",
        ),
        ((*ASKED, "answers"), None, r"question 'q1': 'answers': got null, expected a list"),
        (
            (*ASKED, "answers"),
            [],
            r"question 'q1' has no answers: expected one or more, or \"is_imp",
        ),
        (
            (*ASKED, "is_impossible"),
            True,
            r"'q1' has is_impossible and 2 answer\(s\): expected one",
        ),
        (
            (*ASKED, "is_impossible"),
            1,
            r"'q1': 'is_impossible': got a whole number, expected true or",
        ),
        (ANSWER, "two", r"question 'q1': answers\[1\]: got text, expected an object with 'text'"),
        ((*ANSWER, "text"), ..., r"question 'q1': answers\[1\] has no 'text': got 'answer_st"),
        (
            (*ANSWER, "text"),
            " ",
            r"'q1': answers\[1\]\.text is empty: expected text of the context",
        ),
        (
            (*ANSWER, "answer_start"),
            "3",
            r"answers\[1\]: 'answer_start': got text, expected a whole n",
        ),
        (
            (*ANSWER, "answer_start"),
            True,
            r"'answer_start': got true or false, expected a whole numb",
        ),
        ((*ANSWER, "answer_start"), 3.0, r"'answer_start': got a number, expected a whole number"),
    ],
)
def test_errors_name_the_place_in_the_file(tmp_path, path, value, message):
    with pytest.raises(UserError, match=message) as caught:
        squad_files.read(written(tmp_path, change(path, value)))
    assert str(caught.value).startswith(f"{tmp_path}/set.json")
    assert "\n" not in str(caught.value)


def test_keys_of_a_large_object_are_not_all_listed(tmp_path):
    data = {str(number): 0 for number in range(30)}
    with pytest.raises(UserError, match=r"got '0', '1', '2', '3', '4', '5', '6', '7', expected"):
        squad_files.read(written(tmp_path, data))
    with pytest.raises(UserError, match=r"the file has no 'data': got no keys"):
        squad_files.read(written(tmp_path, {}))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            b'{"data":\n[\n}',
            r"set.json line 3: not JSON \(.*, column 1\); expected one JSON object",
        ),
        (b'{"data": []}\n{"data": []}', r"line 2: not JSON \(Extra data, column 1\)"),
        (b"", r"line 1: not JSON \(Expecting value, column 1\)"),
        (b'{"data":\n"\xe9"}', r"line 2: byte 10 \(0xe9\) is not UTF-8; convert the file"),
        (b"[1]", r"the file: got a list, expected an object with 'data'"),
    ],
)
def test_invalid_json_is_named_with_its_line(tmp_path, data, message):
    with pytest.raises(UserError, match=message) as caught:
        squad_files.read(written(tmp_path, data))
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(
        UserError, match=r"cannot read .*none.json: No such file .*; expected a JSON"
    ):
        squad_files.read(tmp_path / "none.json")
    with pytest.raises(UserError, match=r"cannot read .*: Is a directory"):
        squad_files.read(tmp_path)


@pytest.fixture(scope="module")
def released(shared_data):
    return squad_files.read(shared_data / "squad" / "v2.0_half_dev.json")


def test_the_released_files_have_their_published_sizes(shared_data, released):
    assert (len(released), int(released.impossible.sum())) == (6078, 3168)
    assert len(set(released.titles)) == 16
    english = squad_files.read(shared_data / "squad" / "v1.1_xquad_en.json")
    assert (len(english), len(english.contexts)) == (1190, 240)
    assert {len(answers) for answers in english.answers} == {1}
    assert not english.impossible.any()


def test_every_answer_is_at_its_offset(released):
    reach = released.first_answers()
    for number in np.flatnonzero(~released.impossible):
        begin, end = reach[number]
        context = released.contexts[released.context_of[number]]
        assert context[begin:end] == released.answers[number][0].strip()


def test_a_subsample_is_in_file_order(released):
    sample = released.sample(100, seed=3)
    assert len(sample) == 100
    places = [released.ids.index(identity) for identity in sample.ids]
    assert places == sorted(set(places))
    for new, old in enumerate(places):
        assert sample.questions[new] == released.questions[old]
        assert sample.titles[new] == released.titles[old]
        assert sample.answers[new] == released.answers[old]
        assert sample.answer_starts[new] == released.answer_starts[old]
        assert sample.impossible[new] == released.impossible[old]
        context = released.contexts[released.context_of[old]]
        assert sample.contexts[sample.context_of[new]] == context
    assert len(sample.contexts) == len(set(sample.context_of.tolist())) <= 100
    assert released.sample(100, seed=3).ids == sample.ids
    assert released.sample(100, seed=4).ids != sample.ids
    assert set(released.sample(50, seed=3).ids) < set(sample.ids)
    assert released.sample(10**6, seed=0).ids == released.ids
