"""The bytes of a file nobody vouches for, read from front to back.

Every length that the file states is checked against the bytes that are left before anything is read or allocated, in
one place: a damaged or hostile file costs an error, not the machine's memory. What the bytes mean is ``gguf_file``'s.
"""

from __future__ import annotations

import mmap
import struct
from typing import Any

from ruvcompile.errors import InputError


class GgufBytes:
    """``at`` is the next byte to be read, and ``_take`` alone moves it; ``named_as`` is the file's name in messages.

    All methods that read raise ``InputError`` where the file ends too early; ``what`` is read, says the message.
    """

    def __init__(self, data: mmap.mmap, named_as: str, at: int) -> None:
        self.data = data
        self.named_as = named_as
        self.size = len(data)
        self.at = at

    def string(self, what: str) -> str:
        """Text: its length, then its bytes in UTF-8."""
        (length,) = self.numbers("Q", 1, what)
        raw = self.data[self._take(length, what) : self.at]
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.damaged(f"{what} is not UTF-8 text") from None

    def numbers(self, code: str, count: int, what: str) -> tuple[Any, ...]:
        """So many little-endian numbers of a kind, as ``struct`` calls it."""
        # The byte count is checked before struct sees the format, so a huge count allocates nothing.
        start = self._take(struct.calcsize("<" + code) * count, what)
        return struct.unpack_from(f"<{count}{code}", self.data, start)

    def _take(self, count: int, what: str) -> int:
        start = self.at
        if count > self.size - start:
            raise self.truncated(what, start + count)
        self.at = start + count
        return start

    def truncated(self, what: str, wanted: int) -> InputError:
        """The file ends within ``what``, for which it would need ``wanted`` bytes."""
        return InputError(
            "gguf-truncated",
            f"{self.named_as} is truncated: it ends within {what}",
            context=[f"it has {self.size:,} bytes and would need at least {wanted:,}"],
            hint="download or copy it again",
        )

    def damaged(self, what: str) -> InputError:
        """The file says what cannot be."""
        return InputError("gguf-damaged", f"{self.named_as} is damaged: {what}", hint="download or copy it again")
