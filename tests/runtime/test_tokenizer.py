"""The tokenizer, and text that arrives token by token."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ruvrun.errors import InputError
from ruvrun.tokenizer import Tokenizer
from tests.runtime.heads import byte_fallback, byte_level, write_head

TEXT = "hello wörld, 世界 👩‍👧 \u0e01\u0e33 end"


@pytest.fixture(scope="module", params=[byte_level, byte_fallback])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(write_head(tmp_path_factory.mktemp("head"), request.param()))


@pytest.fixture(scope="module")
def bytes_of(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(write_head(tmp_path_factory.mktemp("bytes"), byte_level()))


def one_by_one(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    decoder = tokenizer.decoder()
    return [*(decoder.push([token]) for token in ids), decoder.flush()]


def test_text_survives(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


def test_a_character_is_held_back_until_its_last_byte(bytes_of: Tokenizer) -> None:
    ids = bytes_of.encode("a世👩")
    assert len(ids) == 1 + 3 + 4
    assert one_by_one(bytes_of, ids) == ["a", "", "", "世", "", "", "", "👩", ""]


def test_an_unfinished_character_is_replaced_at_the_end(bytes_of: Tokenizer) -> None:
    ids = bytes_of.encode("a世")[:-1]
    assert one_by_one(bytes_of, ids) == ["a", "", "", "\ufffd"]


def test_broken_bytes_do_not_hide_what_follows(bytes_of: Tokenizer) -> None:
    start_of_character = bytes_of.encode("世")[0]
    letter = bytes_of.encode("b")
    assert one_by_one(bytes_of, [start_of_character, *letter]) == ["", "\ufffdb", ""]


def test_only_the_first_leading_space_is_dropped(tmp_path: Path) -> None:
    pieces = Tokenizer(write_head(tmp_path, byte_fallback()))
    ids = pieces.encode("a b a")
    assert one_by_one(pieces, ids) == ["a", " b", " a", ""]


def test_what_continues_a_text_keeps_its_leading_space(tmp_path: Path) -> None:
    pieces = Tokenizer(write_head(tmp_path, byte_fallback(), add_bos=True, bos_token="<s>"))
    before, (after,) = pieces.encode("a b"), pieces.encode("a")[1:]
    assert pieces.decoder(before).push([after]) == " a"
    assert pieces.decoder(before[:1]).push([after]) == "a", "nothing stands before it"


@given(st.text(max_size=12), st.text(max_size=12), st.integers(0, 4))
def test_a_continuation_is_what_the_whole_text_has_more(
    tokenizer: Tokenizer, before: str, after: str, cut: int
) -> None:
    first, second = tokenizer.encode(before), tokenizer.encode(after)
    first = first[: max(0, len(first) - cut)]
    known = tokenizer.decode(first)
    if known.endswith("\ufffd"):
        return  # a character that the prompt only began
    decoder = tokenizer.decoder(first)
    pieces = [decoder.push([token]) for token in second]
    assert known + "".join(pieces) + decoder.flush() == tokenizer.decode([*first, *second])


@given(st.text(), st.data())
@example("👩‍👧", None)
def test_pieces_add_up_for_any_text_and_grouping(tokenizer: Tokenizer, text: str, data: st.DataObject | None) -> None:
    ids = tokenizer.encode(text)
    decoder, pieces, at = tokenizer.decoder(), [], 0
    while at < len(ids):
        size = data.draw(st.integers(1, 4)) if data else 1
        pieces.append(decoder.push(ids[at : at + size]))
        at += size
    assert "".join(pieces) + decoder.flush() == tokenizer.decode(ids)


@given(st.lists(st.integers(0, 262), max_size=40))
def test_pieces_add_up_for_any_tokens_at_all(bytes_of: Tokenizer, ids: list[int]) -> None:
    assert "".join(one_by_one(bytes_of, ids)) == bytes_of.decode(ids)


def test_special_tokens_never_become_text(bytes_of: Tokenizer) -> None:
    ids = bytes_of.encode("<|im_start|>he<|im_end|>ll<|endoftext|>")
    assert [ids[0], ids[2], ids[-1]] == [1, 2, 0]
    assert "".join(one_by_one(bytes_of, ids)) == "hell"


def test_chat_follows_the_template(bytes_of: Tokenizer) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    wanted = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert bytes_of.render(messages) == wanted
    assert bytes_of.chat(messages) == bytes_of.encode(wanted)
    assert bytes_of.chat(messages)[0] == 1


def test_begin_of_text_comes_once(tmp_path: Path) -> None:
    plain = Tokenizer(write_head(tmp_path / "without", byte_level()))
    marked = Tokenizer(write_head(tmp_path / "with", byte_level(), bos_token="<|endoftext|>", add_bos=True))
    assert marked.encode("he") == [0, *plain.encode("he")]
    assert marked.encode("<|endoftext|>he") == [0, *plain.encode("he")]
    assert marked.encode("") == [0]
    assert plain.encode("") == []


def test_templates_get_what_model_makers_expect(tmp_path: Path) -> None:
    template = (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'skip' %}{% continue %}{% endif %}\n"
        "    {% generation %}{{ {'q': '<é>', 'c': m.content} | tojson }}{% endgeneration %}\n"
        "{% endfor %}{{ strftime_now('%Y') | length }}{{ tools is none }}{{ add_generation_prompt }}"
    )
    tokenizer = Tokenizer(write_head(tmp_path, byte_level(), template=template))
    rendered = tokenizer.render([{"role": "skip", "content": ""}, {"role": "user", "content": "x"}])
    assert "".join(rendered.split("\n")) == '<|im_start|>{"q": "<é>", "c": "x"}4TrueTrue'


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[7].role.x }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    ],
)
def test_a_template_can_refuse(tmp_path: Path, template: str) -> None:
    tokenizer = Tokenizer(write_head(tmp_path, byte_level(), template=template))
    with pytest.raises(InputError) as refused:
        tokenizer.chat([{"role": "user", "content": "x"}])
    assert refused.value.ref == "chat-template-refused"


def test_the_reason_of_a_refusal_is_told(tmp_path: Path) -> None:
    tokenizer = Tokenizer(write_head(tmp_path, byte_level(), template="{{ raise_exception('roles must alternate') }}"))
    with pytest.raises(InputError, match="roles must alternate"):
        tokenizer.chat([{"role": "user", "content": "x"}])


def test_a_model_without_a_template_does_not_chat(tmp_path: Path) -> None:
    tokenizer = Tokenizer(write_head(tmp_path, byte_level(), template=""))
    assert not tokenizer.can_chat
    with pytest.raises(InputError) as refused:
        tokenizer.chat([{"role": "user", "content": "x"}])
    assert refused.value.ref == "chat-template-missing"


@pytest.mark.parametrize(
    ("file", "content", "ref"),
    [
        ("tokenizer.json", None, "file-missing"),
        ("chat.json", None, "file-missing"),
        ("tokenizer.json", b"{}", "tokenizer-invalid"),
        ("tokenizer.json", b"\xff\xfe", "tokenizer-invalid"),
        ("chat.json", b"{", "tokenizer-invalid"),
        ("chat.json", b'{"template": 3}', "tokenizer-invalid"),
        ("chat.json", json.dumps({"template": "{% if %}"}).encode(), "tokenizer-invalid"),
    ],
)
def test_broken_files_are_refused(tmp_path: Path, file: str, content: bytes | None, ref: str) -> None:
    head = write_head(tmp_path, byte_level())
    if content is None:
        (head / file).unlink()
    else:
        (head / file).write_bytes(content)
    with pytest.raises(InputError) as refused:
        Tokenizer(head)
    assert refused.value.ref == ref
    assert file in refused.value.message
