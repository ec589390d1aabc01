"""Files with a node's link keys: written for their owner alone, and believed only as they were written."""

from __future__ import annotations

from pathlib import Path

import pytest

from ruvrun.errors import InputError, IntegrityError
from ruvrun.transport.keys import read_keys, write_keys
from tests.runtime.zeromqs import A, B


def test_a_key_file(tmp_path: Path) -> None:
    path = tmp_path / "link.key"
    write_keys(path, A)
    assert path.read_text() == f"{A.public}\n{A.secret}\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_keys(path) == A
    write_keys(path, B)
    assert read_keys(path) == B
    assert [one.name for one in tmp_path.iterdir()] == ["link.key"]
    assert A.secret not in repr(A)


@pytest.mark.parametrize(
    ("text", "mode", "kind", "ref"),
    [
        (None, 0o600, InputError, "key-missing"),
        ("", 0o600, InputError, "key-wrong"),
        ("a key\n", 0o600, InputError, "key-wrong"),
        ("\xff", 0o600, InputError, "key-wrong"),
        (f"{A.public}\n{A.secret}\n", 0o644, IntegrityError, "key-exposed"),
        (f"{B.public}\n{A.secret}\n", 0o600, IntegrityError, "key-pair-wrong"),
        (f"{A.public}\n{'~' * 40}\n", 0o600, IntegrityError, "key-pair-wrong"),
    ],
    ids=["none", "empty", "words", "no text", "open to all", "of two pairs", "no base 85"],
)
def test_a_key_file_that_is_none(tmp_path: Path, text: str | None, mode: int, kind: type, ref: str) -> None:
    path = tmp_path / "link.key"
    if text is not None:
        path.write_text(text, "latin-1")
        path.chmod(mode)
    with pytest.raises(kind) as caught:
        read_keys(path)
    assert caught.value.ref == ref
    assert A.secret not in str(caught.value)
