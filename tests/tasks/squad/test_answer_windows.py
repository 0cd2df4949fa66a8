"""Questions and windows of contexts: by hand, against the published loops, on the real files."""

import types

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.tasks.sequences import Pairs
from bertjax.tasks.squad import files as squad_files
from bertjax.tasks.squad import windows as squad_windows
from bertjax.tasks.squad.files import UNKNOWN, SquadQuestions
from bertjax.tokenizers import tokenizer as tokenizers


def letters(cls_id=1, sep_id=2, pair_separators=1):
    """A tokenizer with one token per letter: a is 10, b is 11, ...; other characters have none."""

    def with_offsets(text):
        letter_positions = [place for place, letter in enumerate(text) if letter.isalpha()]
        return [ord(text[place]) - 87 for place in letter_positions], [
            (place, place + 1) for place in letter_positions
        ]

    return types.SimpleNamespace(
        cls_id=cls_id,
        sep_id=sep_id,
        pad_id=7,
        pair_separators=pair_separators,
        encode_batch=lambda texts: [with_offsets(text)[0] for text in texts],
        encode_with_offsets=with_offsets,
    )


def make_questions(*rows, labelled=True):
    """Questions of (question, context, answer's text, its start); no text is no answer."""
    contexts = list(dict.fromkeys(context for _, context, _, _ in rows))
    return SquadQuestions(
        ids=[f"q{number}" for number in range(len(rows))],
        titles=[""] * len(rows),
        questions=[question for question, *_ in rows],
        contexts=contexts,
        context_of=np.array([contexts.index(context) for _, context, _, _ in rows]),
        answers=[(answer,) if answer else () for *_, answer, _ in rows],
        answer_starts=[(start,) if answer else () for *_, answer, start in rows],
        impossible=np.array([not answer for *_, answer, _ in rows]),
        labelled=labelled,
    )


SIZES = {"max_seq_length": 9, "doc_stride": 2, "max_query_length": 2}


def test_windows_by_hand():
    questions = make_questions(
        ("xyz", "ab cdefg", "cd", 3), ("z", "ab", "ab", 0), ("xy", "ab cdefg", "", 0)
    )
    windows = squad_windows.encode(questions, letters(), **SIZES)
    assert isinstance(windows.pairs, Pairs)
    # Two tokens of a question leave room for 9 - 3 - 2 = 4 of a context of 7.
    assert windows.question.tolist() == [0, 0, 0, 1, 2, 2, 2]
    assert windows.first.tolist() == [0, 2, 4, 0, 0, 2, 4]
    rows = windows.pairs.rows(np.arange(4), 9)
    assert rows["input_ids"].tolist() == [
        [1, 33, 34, 2, 10, 11, 12, 13, 2],
        [1, 33, 34, 2, 12, 13, 14, 15, 2],
        [1, 33, 34, 2, 14, 15, 16, 2, 7],
        [1, 35, 2, 10, 11, 2, 7, 7, 7],
    ]
    assert rows["segment_ids"].tolist() == [
        [0, 0, 0, 0, 1, 1, 1, 1, 1],
        [0, 0, 0, 0, 1, 1, 1, 1, 1],
        [0, 0, 0, 0, 1, 1, 1, 1, 0],
        [0, 0, 0, 1, 1, 1, 0, 0, 0],
    ]
    assert windows.context_begin.tolist() == [4, 4, 4, 3, 4, 4, 4]
    assert windows.context_end.tolist() == [8, 8, 7, 5, 8, 8, 7]
    assert windows.labels.tolist() == [[6, 7], [4, 5], [0, 0], [3, 4], [0, 0], [0, 0], [0, 0]]
    assert windows.labels.dtype == np.int32
    assert windows.cls.tolist() == [0] * 7
    assert len(windows) == 7
    places = np.array([4, 5, 4, 6, 4])
    reach = windows.characters(np.array([0, 0, 1, 2, 3 + 1]), places)
    # The space is character 2: the second window begins with c, character 3.
    assert reach.tolist() == [[0, 1], [1, 2], [3, 4], [7, 8], [0, 1]]


def test_the_maximum_context_by_hand():
    windows = squad_windows.encode(make_questions(("xy", "abcdefg", "", 0)), letters(), **SIZES)
    # Windows abcd, cdef, efg. c has 1 token of context in the first and 0 in the second, d 0 and 1;
    # e has 1 in the second and 0 in the third, f 0 and 1; and so on.
    shown = windows.maximum_context
    assert shown.tolist() == [
        *[False] * 4,
        *[True, True, True, False],
        False,
        *[False] * 4,
        *[False, True, True, False],
        False,
        *[False] * 4,
        *[False, True, True],
        False,
    ]


def test_cls_last():
    windows = squad_windows.encode(
        make_questions(("xy", "abcdef", "ab", 0)), letters(), **SIZES, cls_last=True
    )
    rows = windows.pairs.rows(np.arange(2), 9)
    assert rows["input_ids"].tolist() == [
        [33, 34, 2, 10, 11, 12, 13, 2, 1],
        [33, 34, 2, 12, 13, 14, 15, 2, 1],
    ]
    assert rows["segment_ids"].tolist() == [[0, 0, 0, 1, 1, 1, 1, 1, 2]] * 2
    assert windows.cls.tolist() == [8, 8]
    assert windows.labels.tolist() == [[3, 4], [8, 8]]
    assert windows.characters(np.array([1]), np.array([3])).tolist() == [[2, 3]]


def test_two_separators():
    windows = squad_windows.encode(
        make_questions(("xy", "abcde", "e", 4)), letters(pair_separators=2), **SIZES
    )
    rows = windows.pairs.rows(np.arange(2), 9)
    assert rows["input_ids"].tolist() == [
        [1, 33, 34, 2, 2, 10, 11, 12, 2],
        [1, 33, 34, 2, 2, 12, 13, 14, 2],
    ]
    # As with other pairs, the tokens after the first separator are of the second segment.
    assert rows["segment_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 1, 1, 1]] * 2
    assert windows.labels.tolist() == [[0, 0], [7, 7]]


@pytest.mark.parametrize(
    ("answer", "start", "label"),
    [
        ("cd", 4, [5, 6]),
        (" -cd ", 2, [5, 6]),
        ("b -c", 1, [4, 5]),
        ("f-", 8, [8, 8]),
        ("f-", UNKNOWN, [0, 0]),
        (" ab", UNKNOWN, [0, 0]),
        ("-", 9, [0, 0]),
        ("-", 3, [0, 0]),
    ],
)
def test_an_answer_is_the_tokens_that_overlap_it(answer, start, label):
    questions = make_questions(("x", "ab -cd ef-", answer, start))
    sizes = SIZES | {"max_seq_length": 12}
    assert squad_windows.encode(questions, letters(), **sizes).labels.tolist() == [label]


def test_a_part_of_a_token_is_labelled_as_that_token():
    words = letters()
    words.encode_with_offsets = lambda text: ([10, 11], [(0, 5), (6, 12)])
    for answer, start, label in [("all", 1, [3, 3]), ("l w", 4, [3, 4]), ("ords", 7, [4, 4])]:
        questions = make_questions(("x", "small wordss", answer, start))
        windows = squad_windows.encode(questions, words, **SIZES)
        assert windows.labels.tolist() == [label]


def test_tokens_that_share_a_character_or_cover_none():
    """An emoji has several byte-level tokens; the mark of a word may be a separate token."""
    tokenizer = letters()
    tokenizer.encode_with_offsets = lambda text: (
        [10, 11, 12, 13, 14],
        [(0, 1), (2, 3), (2, 3), (4, 4), (4, 5)],
    )
    for answer, start, label in [("b", 2, [4, 5]), ("c", 4, [7, 7]), ("a b", 0, [3, 5])]:
        questions = make_questions(("x", "a b c", answer, start))
        windows = squad_windows.encode(
            questions, tokenizer, max_seq_length=12, doc_stride=2, max_query_length=2
        )
        assert windows.labels.tolist() == [label]


def test_questions_without_labels():
    windows = squad_windows.encode(
        make_questions(("x", "ab", "", 0), labelled=False), letters(), **SIZES
    )
    assert windows.labels is None
    assert windows.maximum_context.sum() == 2


def test_a_question_may_be_empty():
    windows = squad_windows.encode(make_questions(("?", "ab", "b", 1)), letters(), **SIZES)
    assert windows.pairs.tokens.tolist() == [1, 2, 10, 11, 2]
    assert windows.labels.tolist() == [[3, 3]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"max_seq_length": 5},
            r"max_seq_length=5 leaves no room for a context next to",
        ),
        ({"doc_stride": 5}, r"doc_stride: got 5, expected an integer in \[1, 4\], the tokens of a"),
        ({"doc_stride": 0}, r"doc_stride: got 0, expected an integer in \[1, 4\],"),
        ({"max_query_length": 0}, r"max_query_length: got 0, expected >= 1"),
    ],
)
def test_impossible_sizes_are_refused(change, message):
    questions = make_questions(("x", "ab", "b", 1))
    with pytest.raises(UserError, match=message):
        squad_windows.encode(questions, letters(), **(SIZES | change))


def test_the_smallest_sizes():
    sizes = {"max_seq_length": 6, "doc_stride": 1, "max_query_length": 2}
    windows = squad_windows.encode(make_questions(("xy", "abc", "b", 1)), letters(), **sizes)
    assert windows.labels.tolist() == [[0, 0], [4, 4], [0, 0]]


def test_tokenizers_without_the_special_tokens_are_refused():
    for missing in ("cls_id", "sep_id"):
        with pytest.raises(UserError, match=r"no \[CLS\] and \[SEP\] tokens: question answering"):
            squad_windows.encode(
                make_questions(("x", "ab", "b", 1)), letters(**{missing: None}), **SIZES
            )


def test_a_context_without_tokens_is_named():
    questions = make_questions(("x", "ab", "b", 1), ("x", "--", "", 0), ("y", "--", "", 0))
    with pytest.raises(
        UserError, match=r"question 'q1': its context has no tokens, like those"
    ) as one:
        squad_windows.encode(questions, letters(), **SIZES)
    assert "\n" not in str(one.value)


def published_windows(size, room, stride):
    """The published loop: (start, length) of each window."""
    windows, start = [], 0
    while start < size:
        length = min(size - start, room)
        windows.append((start, length))
        if start + length == size:
            break
        start += min(length, stride)
    return windows


def published_choice(windows, token):
    """The published loop: the window with the maximum context of a token."""
    best_score, best = None, None
    for number, (start, length) in enumerate(windows):
        end = start + length - 1
        if start <= token <= end:
            score = min(token - start, end - token) + 0.01 * length
            if best_score is None or score > best_score:
                best_score, best = score, number
    return best


@pytest.mark.parametrize("seed", range(6))
def test_windows_and_maximum_contexts_equal_the_published_loops(seed):
    generator = np.random.default_rng(seed)
    max_seq_length = int(generator.integers(9, 300))
    max_query_length = int(generator.integers(1, min(6, max_seq_length - 4) + 1))
    most = max_seq_length - 3 - max_query_length
    stride = int(generator.integers(1, most + 1))
    rows = [
        ("x" * generator.integers(0, 9), "a" * generator.integers(1, 700), "", number)
        for number in range(12)
    ]
    windows = squad_windows.encode(
        make_questions(*rows),
        letters(),
        max_seq_length=max_seq_length,
        doc_stride=stride,
        max_query_length=max_query_length,
    )
    sizes = windows.context_end - windows.context_begin
    for number, (question, context, *_) in enumerate(rows):
        room = max_seq_length - 3 - min(len(question), max_query_length)
        expected = published_windows(len(context), room, stride)
        own = np.flatnonzero(windows.question == number)
        assert list(zip(windows.first[own].tolist(), sizes[own].tolist(), strict=True)) == expected
        shown = np.full(len(context), -1)
        for order, window in enumerate(own):
            begin = windows.pairs.starts[window] + windows.context_begin[window]
            where = windows.maximum_context[begin : begin + sizes[window]]
            tokens = windows.first[window] + np.flatnonzero(where)
            assert (shown[tokens] == -1).all()
            shown[tokens] = order
        assert shown.tolist() == [
            published_choice(expected, token) for token in range(len(context))
        ]
    outside = windows.pairs.lengths.sum() - sizes.sum()
    assert (~windows.maximum_context).sum() >= outside


ODD = [
    ("北京是中国的首都。上海在东边。", "上海"),
    ("北京是中国的首都。上海在东边。", "首都"),
    ("Man  said:\u00a0two  words\u00a0here\r\nand there", "two  words\u00a0here"),
    ("A cafe\u0301 in São Paulo, naïve.", "cafe\u0301"),
    ("A cafe\u0301 in São Paulo, naïve.", "São Paulo"),
    ("We saw 👩\u200d🔬 and 🎉🎉 today", "🎉🎉"),
    ("We saw 👩\u200d🔬 and 🎉🎉 today", "today"),
    ('He said "so\tit is" (in 1989\u201390).', "1989\u201390"),
    ("\uff26ull width and ﬁne ligatures", "ﬁne"),
    ("\ufeffBegins with a mark", "Begins"),
]

TRAINED = ("wordpiece", "bpe", "unigram", "sentencepiece_bpe")


@pytest.fixture(scope="module", params=TRAINED)
def learned(request):
    """A tokenizer of every kind, trained on all these characters."""
    texts = [text for text, _ in ODD] * 20
    return tokenizers.train(texts, kind=request.param, vocab_size=400, lowercase=False)


def decoded(questions, windows):
    """The text of each window's label, and the question it belongs to."""
    labelled = np.flatnonzero(windows.labels[:, 0] != windows.cls)
    begins = windows.characters(labelled, windows.labels[labelled, 0])[:, 0]
    ends = windows.characters(labelled, windows.labels[labelled, 1])[:, 1]
    for window, begin, end in zip(labelled, begins, ends, strict=True):
        number = int(windows.question[window])
        yield number, questions.contexts[questions.context_of[number]][begin:end]


def test_labels_of_unusual_texts_decode_to_the_answers(learned):
    rows = [("Where?", text, answer, text.index(answer)) for text, answer in ODD]
    questions = make_questions(*rows)
    windows = squad_windows.encode(
        questions, learned, max_seq_length=120, doc_stride=20, max_query_length=16
    )
    found = dict(decoded(questions, windows))
    assert set(found) == set(range(len(ODD)))
    for number, (text, answer) in enumerate(ODD):
        # A piece may be larger than the answer, never smaller.
        assert answer in found[number]
        assert found[number] == found[number].strip()
        assert text.count(found[number]) == 1
    # Pairs that are merged again and again become pieces of several Chinese words.
    exact = ODD if learned.kind == "wordpiece" else ODD[2:7]
    for number, pair in enumerate(ODD):
        assert pair not in exact or found[number] == pair[1]


@pytest.fixture(scope="module", params=["bert-base-uncased", "bert-base-cased"])
def real(request, shared_data):
    """The real questions with a released vocabulary, in windows shorter than most contexts."""
    questions = squad_files.read(shared_data / "squad" / "v2.0_half_dev.json").sample(2500, seed=0)
    vocabulary = tokenizers.load(shared_data / "vocab" / request.param)
    windows = squad_windows.encode(
        questions, vocabulary, max_seq_length=160, doc_stride=48, max_query_length=32
    )
    return questions, vocabulary, windows


def test_windows_cover_every_token_of_the_context(real):
    questions, vocabulary, windows = real
    assert windows.pairs.lengths.max() == 160
    counts = np.bincount(windows.question)
    assert counts.min() == 1
    assert counts.max() > 4
    sizes = windows.context_end - windows.context_begin
    encoded = [vocabulary.encode_with_offsets(context) for context in questions.contexts]
    for number in range(0, len(questions), 50):
        ids, spans = encoded[questions.context_of[number]]
        covered = np.zeros(len(ids), bool)
        for window in np.flatnonzero(windows.question == number):
            tokens = slice(windows.first[window], windows.first[window] + sizes[window])
            places = np.arange(windows.context_begin[window], windows.context_end[window])
            at = windows.pairs.starts[window] + places
            assert windows.pairs.tokens[at].tolist() == ids[tokens]
            reach = windows.characters(np.full(len(places), window), places)
            assert reach.tolist() == [list(span) for span in spans[tokens]]
            covered[tokens] = True
        assert covered.all()


def test_every_token_has_its_maximum_context_once(real):
    questions, vocabulary, windows = real
    sizes = [len(vocabulary.encode_with_offsets(context)[0]) for context in questions.contexts]
    assert windows.maximum_context.sum() == np.array(sizes)[questions.context_of].sum()


def test_labels_of_real_texts_decode_to_the_answers(real):
    """99.93% of the whole file with windows of 384: the other answers are parts of words."""
    questions, _, windows = real
    found = list(decoded(questions, windows))
    answered = np.flatnonzero(~questions.impossible)
    # An answer longer than the overlap of windows may be incomplete in all of them.
    assert len({number for number, _ in found}) >= 0.999 * len(answered)
    same = [text == questions.answers[number][0].strip() for number, text in found]
    assert np.mean(same) > 0.998
    for number, text in found:
        assert questions.answers[number][0].strip() in text
    assert (windows.labels[questions.impossible[windows.question]] == 0).all()
