"""The Open Inference Protocol (version 2, JSON over HTTP) as a pure text machine. No I/O.

::

    body   -> read_call -> Call -> tensors -> pipeline
    pipeline -> arrays -> write_reply -> body -> client

and the other end of the same wire, for a client::

    arrays -> write_call -> body -> head
    head -> body -> read_reply -> arrays

A tensor is either ``data`` in the JSON, flat or nested, or bytes behind the JSON (the protocol's binary extension):
JSON has no word for NaN or infinity, and a number takes some twenty characters there instead of four bytes.
"""

from ruvrun.openinference.ask import read_reply, write_call
from ruvrun.openinference.body import JSON_BYTES, LARGEST_BODY, Call, Wanted, read_call
from ruvrun.openinference.datatypes import describe_model
from ruvrun.openinference.reply import write_reply

__all__ = [
    "JSON_BYTES",
    "LARGEST_BODY",
    "Call",
    "Wanted",
    "describe_model",
    "read_call",
    "read_reply",
    "write_call",
    "write_reply",
]
