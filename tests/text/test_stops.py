"""Stop strings are matched on text, across every border, and nothing of one leaks (case_G5 .. case_G7)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, SupportsIndex

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from server.errors import InvalidRequestError
from server.text.stops import StopMatcher, StopStrings

# Two letters make overlaps, nested and repeated prefixes likely.
letters = st.text("ab", max_size=24)
stop_lists = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def cut(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Oracle: try every end from the left; at the first at which stops are complete, the longest of them wins."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


def held_back(text: str, stops: list[str]) -> str:
    """Oracle: the longest end of the text that begins a stop string."""
    beginnings = (text[place:] for place in range(len(text)))
    return next((end for end in beginnings if any(stop.startswith(end) for stop in stops)), "")


@given(letters, stop_lists, st.lists(st.integers(0, 24)))
@example("abab", ["abb", "bab"], [])
@example("aabaab", ["aabb", "baa", "aa"], [1])
def test_case_G5_the_cut_depends_on_the_text_alone(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher = StopMatcher(StopStrings(stops))
    borders = sorted({0, len(text), *(min(place, len(text)) for place in cuts)})
    scans = [matcher.feed(text[a:b]) for a, b in pairwise(borders)]
    out = "".join(scan.text for scan in scans) + matcher.finish()
    assert (out, matcher.stopped) == cut(text, stops)
    assert [scan.stop for scan in scans if scan.stop] == ([matcher.stopped] if matcher.stopped else [])


@given(letters, stop_lists)
def test_case_G6_what_is_held_back_is_the_longest_end_that_begins_a_stop(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(StopStrings(stops))
    seen = ""
    for place, character in enumerate(text):
        scan = matcher.feed(character)
        seen += scan.text
        if scan.stop is not None:
            return
        so_far = text[: place + 1]
        assert seen == so_far[: len(so_far) - len(held_back(so_far, stops))]


def test_of_nested_stops_the_first_complete_one_ends_the_text() -> None:
    assert feed_all(["ab", "abc"], "xabc") == ("x", "ab")
    assert feed_all(["abcd", "bc"], "xabcd") == ("xa", "bc")


def test_of_stops_complete_at_the_same_character_the_longest_ends_the_text() -> None:
    assert feed_all(["\n", "User:\n"], "hi User:\n") == ("hi ", "User:\n")


def test_the_order_of_the_stops_does_not_matter() -> None:
    stops = ["b", "ab", "bb"]
    assert {feed_all(order, "aab") for order in (stops, stops[::-1])} == {("a", "ab")}


def test_case_G6_an_almost_stop_comes_out_as_soon_as_it_cannot_be_one() -> None:
    matcher = StopMatcher(StopStrings(["###END"]))
    assert [matcher.feed(text).text for text in ("a##", "#EN", "X", "#")] == ["a", "", "###ENX", ""]
    assert matcher.finish() == "#"


def test_the_worked_example_of_docs_text() -> None:
    matcher = StopMatcher(StopStrings(["###", "#!"]))
    assert [matcher.feed(text).text for text in ("a #", "# ", "b#", "!c")] == ["a ", "## ", "b", ""]
    assert matcher.stopped == "#!"


def test_nothing_comes_out_after_a_stop() -> None:
    matcher = StopMatcher(StopStrings(["stop"]))
    assert matcher.feed("go stop go").text == "go "
    assert matcher.feed("more").text == matcher.finish() == ""


def test_stops_of_other_scripts_are_matched_by_character() -> None:
    assert feed_all(["。", "👨‍👩‍👧"], "日本👨‍👩‍👧。") == ("日本", "👨‍👩‍👧")


def test_an_empty_stop_is_refused_by_its_place() -> None:
    with pytest.raises(InvalidRequestError, match=r"^stop\.strings\[1\]: must not be empty$"):
        StopStrings(["a", ""])


class Counting(list[int]):
    """The automaton's failure links, counting how often one is followed."""

    followed = 0

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        self.followed += 1
        return super().__getitem__(index)


def test_case_C5_the_cost_of_a_character_grows_neither_with_the_output_nor_with_the_stops() -> None:
    """The worst text: it nearly completes a long stop again and again."""
    stops = StopStrings(["a" * 200 + "b"] + [f"{'a' * 150}{n}" for n in range(30)])
    stops.fail = links = Counting(stops.fail)
    matcher = StopMatcher(stops)
    for _ in range(2_000):
        matcher.feed("aaaac")
        matcher.feed("a" * 5)
        assert len(matcher._held) <= 200
    assert links.followed <= 20_000  # at most one a character, amortised


def test_case_C5_making_the_automaton_costs_nothing_and_it_grows_with_the_text_only() -> None:
    stops = StopStrings([chr(97 + n) + "x" * 4000 for n in range(16)])
    assert len(stops.depth) == 1
    matcher = StopMatcher(stops)
    matcher.feed("axxxbxxc")
    assert len(stops.depth) == 1 + len("axxxbxxc")
    matcher.feed("axxxbxxc" * 100)
    assert len(stops.depth) == 1 + len("axxxbxxc")


def test_nested_borders_of_long_periodic_stops_need_no_deep_recursion() -> None:
    stops = ["ab" * 3000 + "c", *("ab" * n + "a" * 2 for n in range(1, 900, 60))]
    assert feed_all(stops, "ab" * 2999 + "abd") == ("ab" * 2999 + "abd", None)
    assert feed_all(stops, "x" + "ab" * 61 + "aa") == ("x", "ab" * 61 + "aa")


def feed_all(stops: list[str], text: str) -> tuple[str, str | None]:
    matcher = StopMatcher(StopStrings(stops))
    return matcher.feed(text).text + matcher.finish(), matcher.stopped
