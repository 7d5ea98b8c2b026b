"""The first of many patterns that is found in a text, without searching with every pattern.

A regular expression mostly needs one of a few words in the text. All words of all patterns are looked up at
once, and only the patterns that have a word in the text are searched with, in order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

try:
    from re import _parser as pattern_parser  # Python 3.11 and later
except ImportError:
    try:
        import sre_parse as pattern_parser
    except ImportError:
        # No public module takes a pattern apart. Without one every pattern is searched with: slower, as right.
        pattern_parser = None

START = 3  # letters by which a word is indexed


class RuleIndex:
    """Ordered patterns, indexed by the words they need."""

    def __init__(self, patterns: Sequence[re.Pattern[str]]) -> None:
        self._patterns = patterns
        self._always: list[int] = []
        self._by_start: dict[tuple[str, ...], dict[str, list[int]]] = {}
        for number, pattern in enumerate(patterns):
            words = needed_words(pattern)
            if not words:
                self._always.append(number)
            for word in words:
                self._by_start.setdefault(tuple(word[:START]), {}).setdefault(word, []).append(number)

    def first(self, text: str) -> int | None:
        """Return the number of the first pattern that is found in `text`."""
        if not self._patterns:
            return None
        for number in sorted(self._candidates(text.lower())):
            if self._patterns[number].search(text):
                return number
        return None

    def _candidates(self, lowered: str) -> set[int]:
        starts = zip(*(lowered[skip:] for skip in range(START)), strict=False)
        numbers = set(self._always)
        for start in self._by_start.keys() & starts:
            for word, needing in self._by_start[start].items():
                if word in lowered:
                    numbers.update(needing)
        return numbers


def needed_words(pattern: re.Pattern[str]) -> frozenset[str]:
    """Return words in lower case, of which every match has at least one; none where no such words are known.

    They are the last such group of words, because patterns go from the general to the particular.
    """
    if pattern_parser is None:
        return frozenset()
    groups = _word_groups(pattern_parser.parse(pattern.pattern, pattern.flags))
    return groups[-1] if groups else frozenset()


def _word_groups(parsed: Iterable) -> list[frozenset[str]]:
    groups: list[frozenset[str]] = []
    run = ""
    for kind, value in [*parsed, (None, None)]:
        if kind is pattern_parser.LITERAL:
            run += chr(value).lower()
        elif kind not in (pattern_parser.AT, pattern_parser.ASSERT_NOT):  # these two take no characters
            groups += [frozenset([run] if len(run) >= START else []), _words_inside(kind, value)]
            run = ""
    return list(filter(None, groups))


def _words_inside(kind: object, value) -> frozenset[str]:
    if kind is pattern_parser.SUBPATTERN:
        return _most_telling(value[3])
    if kind in (pattern_parser.MAX_REPEAT, pattern_parser.MIN_REPEAT) and value[0] > 0:
        return _most_telling(value[2])
    if kind is pattern_parser.BRANCH:
        branches = [_most_telling(branch) for branch in value[1]]
        return frozenset().union(*branches) if all(branches) else frozenset()
    return frozenset()


def _most_telling(parsed: Iterable) -> frozenset[str]:
    return max(_word_groups(parsed), key=_telling, default=frozenset())


def _telling(words: frozenset[str]) -> tuple[bool, int, int]:
    return not any("kernel" in word for word in words), min(map(len, words)), -len(words)
