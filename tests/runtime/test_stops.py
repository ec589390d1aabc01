"""Stop strings, across any cut of the text."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from ruvrun.openai.stops import Stops


def cut_by_hand(text: str, strings: list[str]) -> tuple[str, bool]:
    """The definition: the text before the stop string that ends first; of those that end together, the longest."""
    for end in range(1, len(text) + 1):
        found = [string for string in strings if text[:end].endswith(string)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


few_letters = st.text("ab", min_size=1, max_size=5)


@given(st.lists(st.text("ab", max_size=4), max_size=12), st.lists(few_letters, max_size=3))
@example(["aa", "ba", "b"], ["aab", "abab"])
def test_stops_do_not_depend_on_the_pieces(pieces: list[str], strings: list[str]) -> None:
    stops, given_out, stopped = Stops(strings), "", False
    text = "".join(pieces)
    wanted, should_stop = cut_by_hand(text, strings)
    for piece in pieces:
        certain, stopped = stops.push(piece)
        given_out += certain
        assert wanted.startswith(given_out)
        if stopped:
            break
    if not stopped:
        given_out += stops.flush()
    assert (given_out, stopped) == (wanted, should_stop)


def test_nothing_more_is_held_back_than_could_become_a_stop() -> None:
    stops = Stops(["</end>", "STOP"])
    assert stops.push("one < two") == ("one < two", False)
    assert stops.push(" S") == (" ", False)
    assert stops.push("TO") == ("", False)
    assert stops.push("RE </") == ("STORE ", False)
    assert stops.flush() == "</"
