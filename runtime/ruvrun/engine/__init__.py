"""The engine decides every step of a decoder pipeline; it is a pure state machine (see ``engine.engine``)."""

from ruvrun.engine.engine import Engine, Outgoing
from ruvrun.engine.sequence import Finish, Lost, Request, Sequence, Token

__all__ = ["Engine", "Finish", "Lost", "Outgoing", "Request", "Sequence", "Token"]
