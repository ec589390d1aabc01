"""Bodies of OpenAI's API as a test writes them: what differs from a plain one."""

from __future__ import annotations

import json
from typing import Any

from ruvrun.openai import Call, parse_chat, parse_completion

HELLO = [{"role": "user", "content": "hello"}]


def chat(**fields: Any) -> Call:
    return parse_chat(json.dumps({"messages": HELLO, **fields}).encode())


def text(**fields: Any) -> Call:
    return parse_completion(json.dumps({"prompt": "hello", **fields}).encode())
