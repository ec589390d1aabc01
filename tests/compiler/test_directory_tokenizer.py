"""What the head gets of a checkpoint directory: the tokenizer as it is, the right template, start and ends."""

from __future__ import annotations

import contextlib
import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, processors

from ruvcompile.load import load
from ruvcompile.program import Program
from ruvrun.errors import InputError
from tests.checkpoints import CONFIGS, VOCAB, byte_tokenizer, random_tensors, write_directory
from tests.models import CHAT_TEMPLATE, SPECIALS

CONFIG = CONFIGS["llama"]
SAID = "tokenizer_config.json"


def write(directory: Path, name: str, said: Any) -> None:
    (directory / name).write_text(json.dumps(said))


def chat(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(load(str(directory)).head_files["chat.json"])
    return found


def tokenizer(program: Program) -> Tokenizer:
    return Tokenizer.from_str(program.head_files["tokenizer.json"].decode())


def eos(directory: Path) -> tuple[int, ...]:
    decoder = load(str(directory)).decoder
    assert decoder is not None
    return decoder.eos


def test_the_tokenizer_is_handed_on_byte_by_byte(checkpoint: Path) -> None:
    assert load(str(checkpoint)).head_files["tokenizer.json"] == (checkpoint / "tokenizer.json").read_bytes()


def test_what_would_cut_or_fill_a_text_is_taken_out(checkpoint: Path) -> None:
    made = byte_tokenizer()
    made.enable_truncation(4)
    made.enable_padding(length=6, pad_id=0, pad_token=SPECIALS[0])
    made.save(str(checkpoint / "tokenizer.json"))
    found = tokenizer(load(str(checkpoint)))
    assert found.encode("the and of to in").ids == byte_tokenizer().encode("the and of to in").ids


def test_tokens_beyond_the_model_are_left_out_and_others_stay(checkpoint: Path) -> None:
    made = byte_tokenizer()
    made.add_special_tokens([AddedToken("<image>", special=True)])
    assert made.token_to_id("<image>") == VOCAB
    made.save(str(checkpoint / "tokenizer.json"))
    found = tokenizer(load(str(checkpoint)))
    assert found.token_to_id("<image>") is None
    assert found.encode("<|im_start|>the").ids == byte_tokenizer().encode("<|im_start|>the").ids


def test_a_vocabulary_beyond_the_model_is_refused(tmp_path: Path) -> None:
    config = {**CONFIG, "vocab_size": 280}
    write_directory(tmp_path / "small", config, random_tensors(config))
    with pytest.raises(InputError, match="beyond the 280 tokens"):
        load(str(tmp_path / "small"))


def test_a_token_that_only_the_configuration_names_is_added(tmp_path: Path) -> None:
    config = {**CONFIG, "vocab_size": 310}
    directory = write_directory(tmp_path / "tiny", config, random_tensors(config))
    said = json.loads((directory / SAID).read_text())
    said["added_tokens_decoder"] = {
        "0": {"content": SPECIALS[0], "special": True},
        "300": {"content": "<tool>", "special": False},
        "301": {"content": "<|think|>", "special": True},
    }
    write(directory, SAID, said)
    found = tokenizer(load(str(directory)))
    ids = found.encode("a<tool><|think|>b").ids
    assert ids[1:3] == [300, 301]
    assert found.decode(ids) == "a<tool>b"


@pytest.mark.parametrize(
    ("files", "template"),
    [
        ({}, CHAT_TEMPLATE),
        ({SAID: {"chat_template": [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}]}}, "D"),
        ({SAID: {"chat_template": [{"name": "rag", "template": "R"}]}}, "R"),
        ({SAID: {}, "chat_template.json": {"chat_template": "OLD"}}, "OLD"),
        ({"chat_template.jinja": "{{ messages }}"}, "{{ messages }}"),
    ],
)
def test_the_newest_template_is_taken(files: dict[str, Any], template: str, checkpoint: Path) -> None:
    for name, said in files.items():
        (checkpoint / name).write_text(said if isinstance(said, str) else json.dumps(said))
    assert chat(checkpoint)["template"] == template


def test_without_a_template_chatml_where_its_tokens_are(checkpoint: Path) -> None:
    (checkpoint / SAID).unlink()
    assert "<|im_start|>" in chat(checkpoint)["template"]


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("a\n{% if %}", "line 2"),
        ("{% for m in messages %}", "endfor"),
        ("{{ messages | frobnicate }}", "frobnicate"),
        ("{% widget %}", "widget"),
        ("{% for a in b %}" * 25 + "{% endfor %}" * 25, "nested blocks"),
        ("{{ " + "(" * 5000 + ")" * 5000 + " }}", "recursion"),
        ("{{ f(a=1, a=2) }}", "argument repeated"),
        ("{{ " + "9" * 5000 + " }}", "limit"),
    ],
)
def test_a_template_that_no_head_could_read_is_refused_where_it_can_be_mended(
    template: str, says: str, checkpoint: Path
) -> None:
    (checkpoint / "chat_template.jinja").write_text(template)
    with pytest.raises(InputError) as caught:
        load(str(checkpoint))
    assert caught.value.ref == "chat-template-invalid"
    assert str(checkpoint) in caught.value.message
    assert says in caught.value.context[0]


@pytest.mark.parametrize("template", [7, {"default": "X"}, ["X"], [{"name": "default", "template": 3}], [None]])
def test_a_template_of_another_kind_is_not_passed_over(template: Any, checkpoint: Path) -> None:
    write(checkpoint, SAID, {"chat_template": template})
    with pytest.raises(InputError, match="chat_template"):
        load(str(checkpoint))


@pytest.mark.parametrize("template", ["", [], None])
def test_a_template_that_is_empty_is_none(template: Any, checkpoint: Path) -> None:
    write(checkpoint, SAID, {"chat_template": template})
    assert "<|im_start|>" in chat(checkpoint)["template"]


@pytest.mark.parametrize(
    "model",
    [
        {"type": "BPE", "vocab": {}, "merges": []},
        {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"},
        {"type": "Quantum", "vocab": {}},
    ],
)
def test_a_tokenizer_that_reads_no_text_is_refused_before_anything_is_built(model: Any, checkpoint: Path) -> None:
    said = json.loads((checkpoint / "tokenizer.json").read_text())
    write(checkpoint, "tokenizer.json", {**said, "model": model, "added_tokens": [], "pre_tokenizer": None})
    with pytest.raises(InputError) as caught:
        load(str(checkpoint))
    assert caught.value.ref == "tokenizer-invalid"
    assert "pip install -U tokenizers" in str(caught.value.hint)


def test_what_the_files_do_not_say_is_told(checkpoint: Path) -> None:
    assert load(str(checkpoint)).notes == ()
    said = json.loads((checkpoint / "tokenizer.json").read_text())
    write(checkpoint, "tokenizer.json", {**said, "added_tokens": []})
    write(checkpoint, "config.json", {**CONFIG, "eos_token_id": None})
    write(checkpoint, SAID, {})
    ends, template = load(str(checkpoint)).notes
    assert "which token ends an answer" in ends
    assert "no chat template: ChatML" in template


def begin_by_processor(directory: Path) -> None:
    made = byte_tokenizer()
    made.post_processor = processors.TemplateProcessing(single=f"{SPECIALS[1]} $A", special_tokens=[(SPECIALS[1], 1)])
    made.save(str(directory / "tokenizer.json"))


@pytest.mark.parametrize(
    ("said", "processor", "begins"),
    [
        ({}, False, False),
        ({}, True, True),
        ({"add_bos_token": False}, True, False),
        ({"add_bos_token": True}, False, True),
        ({"add_bos_token": True, "bos_token": None}, False, False),
        ({"add_bos_token": None}, True, True),
    ],
)
def test_a_text_begins_as_configuration_or_tokenizer_say(
    said: dict[str, Any], processor: bool, begins: bool, checkpoint: Path
) -> None:
    write(checkpoint, SAID, {"bos_token": {"content": SPECIALS[1], "lstrip": False}, "eos_token": SPECIALS[2], **said})
    if processor:
        begin_by_processor(checkpoint)
    found = chat(checkpoint)
    assert found["add_bos"] is begins
    assert found["bos_token"] == ("" if said.get("bos_token", "") is None else SPECIALS[1])
    assert found["eos_token"] == SPECIALS[2]


def test_special_tokens_may_stand_in_older_files_or_only_as_numbers(checkpoint: Path) -> None:
    (checkpoint / SAID).unlink()
    write(checkpoint, "special_tokens_map.json", {"bos_token": SPECIALS[2], "eos_token": {"content": SPECIALS[1]}})
    assert (chat(checkpoint)["bos_token"], chat(checkpoint)["eos_token"]) == (SPECIALS[2], SPECIALS[1])
    (checkpoint / "special_tokens_map.json").unlink()
    assert (chat(checkpoint)["bos_token"], chat(checkpoint)["eos_token"]) == (SPECIALS[1], SPECIALS[2])
    for number in (None, -1, 1 << 64, "1", 299.0, 5000):
        write(checkpoint, "config.json", {**CONFIG, "bos_token_id": number})
        assert chat(checkpoint)["bos_token"] == ""


def test_what_ends_an_answer_is_collected_from_every_file(checkpoint: Path) -> None:
    assert eos(checkpoint) == (0, 2)  # <|endoftext|> by its name
    write(checkpoint, "generation_config.json", {"eos_token_id": [7, 9]})
    assert eos(checkpoint) == (0, 2, 7, 9)
    write(checkpoint, "config.json", {**CONFIG, "eos_token_id": 11})
    assert eos(checkpoint) == (0, 2, 7, 9, 11)
    write(checkpoint, "generation_config.json", {"eos_token_id": None})
    write(checkpoint, "config.json", {**CONFIG, "eos_token_id": None})
    assert eos(checkpoint) == (0, 2)


VALUES: list[Any] = [
    None, True, -1, 0, 3, 1.5, 1e308, "", "x", "yarn", [], {}, 2**31, 2**63, 299, 300, [1], [None], {"a": 1},
]  # fmt: skip
EXTRA = ("rope_scaling", "layer_types", "sliding_window", "head_dim", "no_rope_layers", "text_config", "num_experts")


@pytest.fixture(scope="module")
def each(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of each kind."""
    root = tmp_path_factory.mktemp("each")
    return {name: write_directory(root / name, config, random_tensors(config)) for name, config in CONFIGS.items()}


@settings(max_examples=150)
@given(data=st.data())
def test_values_of_another_kind_give_an_error_of_ours_or_a_model(each: dict[str, Path], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(each)))
    config, directory = CONFIGS[name], each[name]
    said: dict[str, Any] = {"bos_token": SPECIALS[1], "eos_token": SPECIALS[2]}
    said["added_tokens_decoder"] = {"0": {"content": SPECIALS[0], "special": True}}
    said["chat_template"] = [{"name": "default", "template": "x"}]
    files = {"config.json": dict(config), SAID: said, "generation_config.json": {"eos_token_id": [1, 2]}}
    for name, whole in files.items():
        changed: Any = copy.deepcopy(whole)
        if name == data.draw(st.sampled_from(sorted(files))):
            node = changed
            while True:
                keys = [*node, *EXTRA] if isinstance(node, dict) else list(range(len(node)))
                key = data.draw(st.sampled_from(keys))
                inner = node.get(key) if isinstance(node, dict) else node[key]
                if not inner or not isinstance(inner, dict | list) or data.draw(st.booleans()):
                    node[key] = copy.deepcopy(data.draw(st.sampled_from(VALUES)))
                    break
                node = inner
        write(directory, name, changed)
    with contextlib.suppress(InputError):
        load(str(directory))
