"""OpenAI's HTTP API as a pure text machine: JSON to requests, tokens to answers. No I/O.

::

    body   -> parse_chat | parse_completion -> Call -> (tokenizer) -> engine_request -> engine
    engine -> tokens -> Reply -> chunks -> client, or fold(chunks) -> client
"""

from ruvrun.openai.body import ApiError
from ruvrun.openai.call import Call, engine_request, parse_chat, parse_completion
from ruvrun.openai.reply import Choice, Reply, fold

__all__ = ["ApiError", "Call", "Choice", "Reply", "engine_request", "fold", "parse_chat", "parse_completion"]
