"""Answers from start and end scores: by hand, and against the published loops."""

import json
import math
import types

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.tasks.squad import answers as squad_answers
from bertjax.tasks.squad import windows as squad_windows
from bertjax.tasks.squad.files import SquadQuestions


def words():
    """A tokenizer with one token per word."""

    def with_offsets(text):
        spans, at = [], 0
        for word in text.split():
            at = text.index(word, at)
            spans.append((at, at + len(word)))
            at += len(word)
        return [10 + number for number in range(len(spans))], spans

    return types.SimpleNamespace(
        cls_id=1,
        sep_id=2,
        pad_id=0,
        pair_separators=1,
        encode_batch=lambda texts: [with_offsets(text)[0] for text in texts],
        encode_with_offsets=with_offsets,
    )


def make_questions(*rows):
    """Questions of one word about the given contexts."""
    return SquadQuestions(
        ids=[f"q{number}" for number in range(len(rows))],
        titles=[""] * len(rows),
        questions=["?"] * len(rows),
        contexts=list(rows),
        context_of=np.arange(len(rows)),
        answers=[()] * len(rows),
        answer_starts=[()] * len(rows),
        impossible=np.ones(len(rows), bool),
    )


def read(*rows, max_seq_length=20, doc_stride=2, cls_last=False):
    """Questions and their windows; a context starts at position 3."""
    questions = make_questions(*rows)
    sizes = {"max_seq_length": max_seq_length, "doc_stride": doc_stride, "max_query_length": 1}
    return questions, squad_windows.encode(questions, words(), **sizes, cls_last=cls_last)


def scored(*windows):
    """{position: score} of each window as the two arrays, best first, padded with position 0."""
    width = max(map(len, windows))
    rows = [sorted(window.items(), key=lambda item: -item[1]) for window in windows]
    rows = [row + [(0, -math.inf)] * (width - len(row)) for row in rows]
    places, scores = np.moveaxis(np.array(rows, float), -1, 0)
    return scores.astype(np.float32), places.astype(np.int32)


def texts(found, number=0):
    return [candidate.text for candidate in found.n_best[number]]


def test_one_window_by_hand():
    questions, windows = read("The  black\u00a0cat sat.")
    # Tokens: The 3, black 4, cat 5, sat. 6.
    found = squad_answers.find(
        questions, windows, *scored({4: 2.0, 3: 1.0, 6: 0.5}), *scored({5: 3.0, 4: 0.25})
    )
    assert texts(found) == ["black\u00a0cat", "The  black\u00a0cat", "black", "The  black"]
    assert [candidate.start_logit for candidate in found.n_best[0]] == [2.0, 1.0, 2.0, 1.0]
    assert [candidate.end_logit for candidate in found.n_best[0]] == [3.0, 3.0, 0.25, 0.25]
    total = sum(math.exp(score) for score in (5, 4, 2.25, 1.25))
    expected = [math.exp(score) / total for score in (5, 4, 2.25, 1.25)]
    probabilities = [candidate.probability for candidate in found.n_best[0]]
    assert probabilities == pytest.approx(expected)
    assert found.predictions() == {"q0": "black\u00a0cat"}
    assert found.null_scores is None
    assert found.null_odds is None
    assert found.odds() == {}


def test_positions_outside_the_context_are_ignored():
    questions, windows = read("a b c")
    # 0 is [CLS], 1 the question, 2 and 6 are [SEP], 7 and more are padding.
    wrong = dict.fromkeys((0, 1, 2, 6, 7, 19), 9.0)
    found = squad_answers.find(
        questions, windows, *scored({**wrong, 4: 1.0}), *scored({**wrong, 5: 1.0})
    )
    assert texts(found) == ["b c"]
    assert texts(squad_answers.find(questions, windows, *scored(wrong), *scored({4: 1.0}))) == [""]
    assert texts(squad_answers.find(questions, windows, *scored({4: 1.0}), *scored(wrong))) == [""]


def test_reversed_and_too_long_spans_are_ignored():
    questions, windows = read("a b c d")
    starts, ends = scored({5: 8.0, 3: 1.0}), scored({4: 9.0, 6: 1.0})
    assert texts(squad_answers.find(questions, windows, *starts, *ends)) == [
        "a b",
        "c d",
        "a b c d",
    ]
    found = squad_answers.find(questions, windows, *starts, *ends, max_answer_length=3)
    assert texts(found) == ["a b", "c d"]
    assert texts(squad_answers.find(questions, windows, *starts, *ends, max_answer_length=1)) == [
        ""
    ]
    exact = squad_answers.find(questions, windows, *scored({5: 1.0}), *scored({5: 1.0}))
    assert texts(exact) == ["c"]


def test_an_answer_starts_in_the_window_of_maximum_context():
    questions, windows = read("a b c d e", max_seq_length=8)
    assert windows.first.tolist() == [0, 2]
    # Windows abcd and cde: c has more around it in the first, d in the second, whatever the scores.
    starts, ends = scored({5: 1.0}, {3: 5.0}), scored({6: 1.0}, {5: 5.0})
    assert texts(squad_answers.find(questions, windows, *starts, *ends)) == ["c d"]
    starts, ends = scored({6: 9.0}, {4: 1.0}), scored({6: 9.0}, {5: 1.0})
    assert texts(squad_answers.find(questions, windows, *starts, *ends)) == ["d e"]
    # Before the beginning of the second window lie tokens of the first one.
    before = squad_answers.find(
        questions, windows, *scored({6: 1.0}, {-3: 1.0}), *scored({3: 1.0}, {3: 1.0})
    )
    assert texts(before) == [""]


def test_the_same_text_is_listed_once_with_its_best_scores():
    questions, windows = read("cat and cat")
    found = squad_answers.find(
        questions, windows, *scored({5: 2.0, 3: 1.0}), *scored({5: 2.0, 3: 1.0})
    )
    assert texts(found) == ["cat", "cat and cat"]
    assert found.n_best[0][0].start_logit == 2.0
    # Otherwise two would be found at once.
    one = squad_answers.find(
        questions, windows, *scored({5: 2.0, 3: 1.0}), *scored({5: 2.0, 3: 1.0}), n_best_size=1
    )
    assert texts(one) == ["cat"]


def test_the_best_of_several_windows_and_questions():
    questions, windows = read("a b c d e f g h", "x y", max_seq_length=8, doc_stride=4)
    assert windows.question.tolist() == [0, 0, 1]
    starts = scored({3: 1.0}, {4: 3.0}, {3: 2.0})
    ends = scored({4: 1.0}, {5: 3.0}, {3: 2.0})
    found = squad_answers.find(questions, windows, *starts, *ends)
    assert found.predictions() == {"q0": "f g", "q1": "x"}
    assert [texts(found, 0), texts(found, 1)] == [["f g", "a b"], ["x"]]


def test_equal_scores_keep_the_order_of_positions():
    questions, windows = read("a b c")
    starts = np.zeros((1, 3), np.float32), np.array([[4, 3, 5]])
    ends = np.zeros((1, 3), np.float32), np.array([[5, 3, 4]])
    found = squad_answers.find(questions, windows, *starts, *ends)
    assert texts(found) == ["b c", "b", "a b c", "a", "a b", "c"]


def test_no_answer_is_the_lowest_of_all_windows():
    questions, windows = read("a b c d e f g h", "x y", max_seq_length=8, doc_stride=4)
    starts, ends = scored({3: 1.0}, {4: 3.0}, {3: 2.0}), scored({4: 1.0}, {5: 3.0}, {3: 2.0})
    nulls = np.array([9.0, 7.0, 3.0], np.float32)
    found = squad_answers.find(questions, windows, *starts, *ends, nulls)
    assert found.null_scores.tolist() == [7.0, 3.0]
    assert found.null_odds.tolist() == [7.0 - 6.0, 3.0 - 4.0]
    assert found.odds() == {"q0": 1.0, "q1": -1.0}
    assert texts(found, 0) == ["", "f g", "a b"]
    assert texts(found, 1) == ["x", ""]
    assert (found.n_best[0][0].start_logit, found.n_best[0][0].end_logit) == (3.5, 3.5)
    assert found.predictions() == {"q0": "", "q1": "x"}
    assert found.predictions(threshold=1.0) == {"q0": "f g", "q1": "x"}
    assert found.predictions(threshold=-1.5) == {"q0": "", "q1": ""}
    assert found.predictions(threshold=math.inf) == {"q0": "f g", "q1": "x"}


def test_no_answer_is_appended_to_the_best_answers():
    questions, windows = read("a b c d")
    starts, ends = scored({3: 4.0, 4: 3.0, 5: 2.0}), scored({6: 0.0})
    low = squad_answers.find(questions, windows, *starts, *ends, np.array([-9.0]), n_best_size=2)
    assert texts(low) == ["a b c d", "b c d", ""]
    middle = squad_answers.find(questions, windows, *starts, *ends, np.array([3.5]), n_best_size=2)
    assert texts(middle) == ["a b c d", ""]
    equal = squad_answers.find(questions, windows, *starts, *ends, np.array([4.0]), n_best_size=2)
    assert texts(equal) == ["a b c d", ""]


def test_a_question_without_any_span():
    questions, windows = read("a b", "c d")
    starts, ends = scored({0: 1.0}, {3: 1.0}), scored({4: 1.0}, {4: 1.0})
    one = squad_answers.find(questions, windows, *starts, *ends)
    assert one.n_best[0] == [squad_answers.Candidate("", 1.0, 0.0, 0.0)]
    assert one.predictions() == {"q0": "", "q1": "c d"}
    two = squad_answers.find(questions, windows, *starts, *ends, np.array([-50.0, 0.0]))
    assert two.n_best[0] == [squad_answers.Candidate("", 1.0, -25.0, -25.0)]
    assert two.odds() == {"q0": squad_answers.NO_SPAN_ODDS, "q1": -2.0}
    assert two.predictions(threshold=math.inf) == {"q0": "", "q1": "c d"}


def test_scores_of_minus_infinity_are_ignored():
    questions, windows = read("a b")
    starts, ends = scored({4: -math.inf, 3: 1.0}), scored({4: 1.0, 3: -math.inf})
    assert texts(squad_answers.find(questions, windows, *starts, *ends)) == ["a b"]


def test_tokens_that_cover_nothing():
    questions = make_questions("a  b")
    tokenizer = words()
    tokenizer.encode_with_offsets = lambda text: ([10, 11, 12], [(0, 1), (3, 3), (3, 4)])
    sizes = {"max_seq_length": 20, "doc_stride": 2, "max_query_length": 1}
    windows = squad_windows.encode(questions, tokenizer, **sizes)
    starts, ends = scored({3: 1.0, 4: 3.0}), scored({4: 2.0, 5: 1.0})
    assert texts(squad_answers.find(questions, windows, *starts, *ends)) == ["b", "a", "a  b"]


def test_tokens_of_one_character_are_in_order_too():
    questions = make_questions("ab")
    tokenizer = words()
    tokenizer.encode_with_offsets = lambda text: ([10, 11, 12], [(0, 1), (1, 2), (1, 2)])
    sizes = {"max_seq_length": 20, "doc_stride": 2, "max_query_length": 1}
    windows = squad_windows.encode(questions, tokenizer, **sizes)
    found = squad_answers.find(questions, windows, *scored({5: 1.0}), *scored({4: 1.0}))
    assert texts(found) == [""]


def test_cls_last():
    questions, windows = read("a b c", cls_last=True)
    found = squad_answers.find(
        questions, windows, *scored({2: 1.0, 0: 9.0}), *scored({3: 1.0, 6: 9.0})
    )
    assert texts(found) == ["a b"]


def test_invalid_settings_are_refused():
    questions, windows = read("a b", "c d")
    good = scored({3: 1.0}, {3: 1.0})
    for value in (math.nan, math.inf):
        bad = (np.array([[1.0], [value]], np.float32), good[1])
        nulls = np.array([0.0, value])
        for arguments in ((*bad, *good), (*good, *bad), (*good, *good, nulls)):
            with pytest.raises(UserError, match=r"question 'q1': got scores that are NaN or"):
                squad_answers.find(questions, windows, *arguments)
    for name in ("n_best_size", "max_answer_length"):
        with pytest.raises(UserError, match=f"{name}: got 0, expected >= 1"):
            squad_answers.find(questions, windows, *good, *good, **{name: 0})
    with pytest.raises(ValueError, match="scores of 1 windows, expected 2"):
        squad_answers.find(questions, windows, *scored({3: 1.0}), *good)


def published(questions, windows, starts, ends, nulls, n_best_size, max_answer_length):
    """The published loops: (text, start's score, end's score) of each question."""
    is_maximum = windows.maximum_context
    result = []
    for number, context in enumerate(questions.context_of):
        spans, null = [], math.inf
        for window in np.flatnonzero(windows.question == number):
            null = min(null, float(nulls[window]))
            inside = range(windows.context_begin[window], windows.context_end[window])
            for start, start_score in zip(starts[1][window], starts[0][window], strict=True):
                for end, end_score in zip(ends[1][window], ends[0][window], strict=True):
                    if start not in inside or end not in inside:
                        continue
                    if not is_maximum[windows.pairs.starts[window] + start]:
                        continue
                    if end < start or end - start + 1 > max_answer_length:
                        continue
                    token = windows.first[window] - windows.context_begin[window]
                    pair = float(start_score), float(end_score)
                    spans.append((start + token, end + token, *pair))
        spans.append((None, None, null / 2, null / 2))
        spans.sort(key=lambda span: span[2] + span[3], reverse=True)
        tokens = words().encode_with_offsets(questions.contexts[context])[1]
        best, seen = [], set()
        for first, last, *scores in spans:
            if len(best) >= n_best_size:
                break
            text = ""
            if first is not None:
                text = questions.contexts[context][tokens[first][0] : tokens[last][1]]
            if text not in seen:
                seen.add(text)
                best.append((text, *scores))
        if "" not in seen:
            best.append(("", null / 2, null / 2))
        result.append(best)
    return result


@pytest.mark.parametrize("seed", range(8))
def test_the_best_answers_equal_the_published_loops(seed):
    """With many equal scores and words; some positions are outside, in any order."""
    generator = np.random.default_rng(seed)
    contexts = [
        " ".join(generator.choice(["a", "b", "cc", "a,"], generator.integers(1, 40)))
        for _ in range(30)
    ]
    questions, windows = read(*contexts, max_seq_length=16, doc_stride=5)
    starts, ends = (
        (
            generator.integers(-4, 5, (len(windows), 6)).astype(np.float32),
            generator.integers(0, 17, (len(windows), 6)),
        )
        for _ in range(2)
    )
    nulls = generator.integers(-6, 9, len(windows)).astype(np.float32)
    limits = {"n_best_size": int(generator.integers(1, 9)), "max_answer_length": 5}
    found = squad_answers.find(questions, windows, *starts, *ends, nulls, **limits)
    expected = published(questions, windows, starts, ends, nulls, **limits)
    for number, best in enumerate(expected):
        assert [(c.text, c.start_logit, c.end_logit) for c in found.n_best[number]] == best
        assert sum(c.probability for c in found.n_best[number]) == pytest.approx(1)
        text = next((entry for entry in best if entry[0]), None)
        null = found.null_scores[number]
        odds = squad_answers.NO_SPAN_ODDS if text is None else null - text[1] - text[2]
        assert found.null_odds[number] == odds


def test_many_windows_are_processed_in_chunks(monkeypatch):
    generator = np.random.default_rng(0)
    questions, windows = read(*["a b c d e f g h i"] * 20, max_seq_length=8, doc_stride=2)
    starts, ends = (
        (generator.normal(size=(len(windows), 4)), generator.integers(2, 8, (len(windows), 4)))
        for _ in range(2)
    )
    whole = squad_answers.find(questions, windows, *starts, *ends)
    monkeypatch.setattr("bertjax.tasks.squad.windows._WINDOWS_PER_CHUNK", 7)
    assert squad_answers.find(questions, windows, *starts, *ends).n_best == whole.n_best


def test_the_files(tmp_path):
    questions, windows = read('北京 "é"\t👩\u200d🔬', "x y")
    questions.ids[0] = "問"
    starts, ends = scored({3: 1.0}, {3: 2.0}), scored({5: 1.0}, {3: 2.0})
    found = squad_answers.find(questions, windows, *starts, *ends, np.array([-4.0, 9.0]))
    folder = tmp_path / "new" / "folder"
    squad_answers.write(folder, found, threshold=5.5)
    assert sorted(path.name for path in folder.iterdir()) == [
        "nbest_predictions.json",
        "null_odds.json",
        "predictions.json",
    ]
    text = (folder / "predictions.json").read_bytes().decode("utf-8")
    assert text == '{\n    "問": "北京 \\"é\\"\\t👩\u200d🔬",\n    "q1": "x"\n}\n'
    squad_answers.write(folder, found, threshold=0.0)
    assert json.loads((folder / "predictions.json").read_bytes())["q1"] == ""
    assert json.loads((folder / "null_odds.json").read_bytes()) == {"問": -6.0, "q1": 5.0}
    best = json.loads((folder / "nbest_predictions.json").read_bytes())
    assert list(best) == ["問", "q1"]
    assert list(best["q1"][0]) == ["text", "probability", "start_logit", "end_logit"]
    assert [entry["text"] for entry in best["q1"]] == ["", "x"]
    assert best["q1"][0]["probability"] == pytest.approx(1 / (1 + math.exp(-5)))


def test_the_files_of_squad_1(tmp_path):
    questions, windows = read("a b")
    squad_answers.write(
        tmp_path, squad_answers.find(questions, windows, *scored({3: 1.0}), *scored({4: 1.0}))
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "nbest_predictions.json",
        "predictions.json",
    ]
