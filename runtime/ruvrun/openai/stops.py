"""Stop strings in a text that arrives in pieces.

A stop string may be spread over several tokens, so any end of the text that could still become one is held
back. The text is looked at one character after the other: the result does not depend on how it was cut.
"""

from __future__ import annotations

from collections.abc import Sequence


class Stops:
    """Finds the first stop string in a text that arrives in pieces (Knuth, Morris and Pratt, one per string).

    Args:
        strings: none of them empty; an empty sequence finds nothing and holds nothing back.
    """

    def __init__(self, strings: Sequence[str] = ()) -> None:
        assert all(strings), "an empty stop string would stop everything"
        self._strings = tuple(strings)
        self._borders = [_borders(string) for string in self._strings]
        self._matched = [0] * len(self._strings)  # characters of each string that the text ends with
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Take more text.

        Returns:
            The text that is certain to come before any stop string, and whether a stop string is complete.
            After that nothing more may be pushed.
        """
        if not self._strings:
            return text, False
        for end, character in enumerate(text, 1):
            for which, string in enumerate(self._strings):
                matched, borders = self._matched[which], self._borders[which]
                while matched and string[matched] != character:
                    matched = borders[matched - 1]
                self._matched[which] = matched + (string[matched] == character)
            complete = [len(string) for string, n in zip(self._strings, self._matched, strict=True) if n == len(string)]
            if complete:
                seen = self._held + text[:end]
                self._held = ""
                return seen[: len(seen) - max(complete)], True
        seen, hold = self._held + text, max(self._matched)
        self._held = seen[len(seen) - hold :]
        return seen[: len(seen) - hold], False

    def flush(self) -> str:
        """The text held back, at the end: it did not become a stop string."""
        held, self._held = self._held, ""
        return held


def _borders(string: str) -> list[int]:
    """For each prefix of ``string``, how long its longest proper border (prefix that is also a suffix) is."""
    borders = [0] * len(string)
    for end in range(1, len(string)):
        length = borders[end - 1]
        while length and string[length] != string[end]:
            length = borders[length - 1]
        borders[end] = length + (string[length] == string[end])
    return borders
