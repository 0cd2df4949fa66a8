"""Split text into sentences by rules; fast compared with tokenization.

A line end always ends a sentence. Within a line a sentence ends after `.`, `!`, `?`, an ellipsis or
a related mark, closing quotes and brackets, and white space; but not if the next word is lower case
or the previous one is an abbreviation, an initial or the number of a list item. An abbreviation
that may also be the last word of a sentence ("Inc.", "U.S.", "p.m.") ends it only before a word
that often starts sentences. Full-width marks need no white space. Abbreviations are English; for
other languages only the marks apply. `tools/measure_sentences.py` measures the accuracy.
"""

import re

# Ellipsis, Arabic question mark and full stop, danda and double danda.
_NARROW = r".!?\u2026\u061f\u06d4\u0964\u0965"
# Ideographic full stop, full-width ! and ?, half-width ideographic full stop.
_WIDE = r"\u3002\uff01\uff1f\uff61"
_MARKS = _NARROW + _WIDE
# Curly quotes; corner brackets, full-width ), lenticular and double angle brackets.
_NARROW_CLOSING, _WIDE_CLOSING = r"\u2019\u201d", r"\u300d\u300f\uff09\u3011\u300b"
_SENTENCE_END = re.compile(
    rf"""[{_MARKS}](?<![{_MARKS}]{{2}})[{_MARKS}]*+  # start of a run of marks: linear time
        ["'\u00bb)\]}}{_NARROW_CLOSING}{_WIDE_CLOSING}]*+
        (\s++ | (?<=[{_WIDE}{_WIDE_CLOSING}]) | (?<=[{_WIDE}][{_NARROW_CLOSING}]))
        (?=\S)
    """,
    re.VERBOSE,
)
_OPENING = "\"'([{\u201c\u2018\u00ab\u00bf\u00a1\u2014\u2013-"
_INITIALS = re.compile(r"[A-Z]|([A-Za-z]{1,2}\.)+[A-Za-z]{1,2}")
_MAX_ABBREVIATION_LENGTH = 24

_NEVER_LAST_WORDS = """
    mr mrs ms messrs mme mlle dr drs prof profs rev revd fr hon gov lt sgt capt cpt cmdr cdr col gen
    adm maj brig pvt cpl pres rep reps sen sens supt insp det amb st ste mt ft herr sra srta msgr
    ven gens lts sgts cols asst vs v viz cf e.g eg i.e ie ca c approx incl esp resp ibid op eds vol
    vols fig figs eq eqs sec ch chap pp para art nos no nr tel est dept univ assn bros mfg
"""
_POSSIBLE_LAST_WORDS = """
    inc ltd co cos corp plc llc llp gmbh s.a s.p.a jr sr esq etc al ph.d m.d b.a m.a d.d.s m.b.a
    a.m p.m am pm a.d b.c b.c.e c.e u.s u.k u.n e.u d.c u.s.a u.s.s.r ave blvd rd hwy sq bldg apt
    jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thur thurs fri sat sun
    ala ariz ark calif colo conn del fla ga ill ind kan ky la mass md mich minn miss mo mont neb nev
    okla ore pa penn tenn tex va vt wash wis wyo n.y n.j n.h n.m n.c s.c n.d s.d r.i w.va
    p ed trans dist div lbs oz ins km kg cm mm hr hrs min mins yr yrs sp spp var subsp op.cit
"""
_WORDS_BEFORE_NUMBERS = "no nos nr vol vols fig figs eq eqs sec ch chap pp para art"
_FIRST_WORDS = """
    The A An This That These Those It Its He She His Her They Their We Our You Your I My There Here
    In On At By For From To With Without Within Under Over Of As After Before Since During Until
    Although Though Because If When While Where Whereas Once But And Or Nor So Yet However Moreover
    Furthermore Therefore Thus Also Both Each Every Some Many Most Several Other Another Such All
    Not No One Two Only Even Then Now Later Meanwhile According Despite Like Unlike What Who How Why
    Which Is Are Was Were Has Have Had Do Does Did Can Could Will Would Should May Might Let
"""
_NEVER_LAST = frozenset(_NEVER_LAST_WORDS.split())
_MAYBE_LAST = frozenset(_POSSIBLE_LAST_WORDS.split())
_NUMBERED = frozenset(_WORDS_BEFORE_NUMBERS.split())
_OFTEN_FIRST = frozenset(_FIRST_WORDS.split())


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences, without the white space around them."""
    return [sentence for line in split_paragraphs(text) for sentence in line]


def split_paragraphs(text: str) -> list[list[str]]:
    """Split a text into lines, and each line that is not blank into sentences."""
    return [split_line(line) for line in text.splitlines() if not line.isspace() and line]


def split_line(line: str) -> list[str]:
    """Split a line into sentences; their concatenation is the line without some white space."""
    sentences, start = [], 0
    line = line.strip()
    for mark in _SENTENCE_END.finditer(line):
        mark_start, end = mark.span()
        following = line[end]
        if following.islower() or following in ",;:":
            continue
        if line[mark_start] == "." and _is_abbreviation(line, start, mark_start, end):
            continue
        sentences.append(line[start:end].rstrip())
        start = end
    if start < len(line):
        sentences.append(line[start:])
    return sentences


def _is_abbreviation(line: str, start: int, dot: int, end: int) -> bool:
    """Whether the dot ends an abbreviation and the sentence continues at `end`."""
    before = line[max(start, dot - _MAX_ABBREVIATION_LENGTH) : dot]
    word = before[before.rfind(" ") + 1 :].lstrip(_OPENING)
    known = word.lower()
    if known.isdigit():
        return len(word) <= 3 and dot - len(word) <= start  # "1. First item"
    if known in _NUMBERED:
        return line[end].isdigit() or line[end + 1 : end + 2] == "."
    if known in _NEVER_LAST:
        return line[dot : dot + 2] != ".."
    if known in _MAYBE_LAST or _INITIALS.fullmatch(word):
        return _next_word(line, end) not in _OFTEN_FIRST
    return False


def _next_word(line: str, end: int) -> str:
    # The lookahead excludes initials, as in "A. Smith".
    word = re.match(r"\w+(?!\.)", line[end : end + 20].lstrip(_OPENING))
    return word.group() if word else ""
