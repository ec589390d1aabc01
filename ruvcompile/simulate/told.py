"""A simulation as a sentence for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def simulation_text(found: Mapping[str, Any]) -> str:
    """What the users of a planned fleet would meet, in a few sentences.

    Args:
        found: the ``simulation`` of the JSON object of ``plan``.
    """
    asked = f"{_counted(found['users'], 'user')}, {found['think_s']:g} s of pause between requests"
    if "ttft_ms" in found:
        lengths = f"prompts of {found['prompt_tokens']:g} and answers of {found['max_tokens']:g} tokens in the mean"
        if found["prompt_tokens"] + found["max_tokens"] > found["context"]:
            lengths += f", cut where the context of {found['context']} ends"
        waits = (
            f"first token after {_seconds(found['ttft_ms']['p50'])} (p95 {_seconds(found['ttft_ms']['p95'])}), "
            f"p95 {found['tpot_ms']['p95'] or 0:.0f} ms per token, {found['tokens_per_s']:.3g} tokens/s in all"
        )
        if found["put_backs"]:
            waits += f", sequences put back {found['put_backs']} times"
        asked = f"{asked}, {lengths}"
    else:
        waits = (
            f"a result after {_seconds(found['latency_ms']['p50'])} (p95 {_seconds(found['latency_ms']['p95'])}), "
            f"{found['items_per_s']:.3g} items/s in all"
        )
    limit = _seconds(found["in_time_ms"])
    away = (
        f"{_counted(found['nodes_may_be_away'], 'node')} may be away, the head's not counted, with p95 within {limit}"
    )
    if not found["in_time"]:
        away = f"not even with all nodes there is p95 within {limit}"
    return f"{found['is']}: {asked}: {waits}; stages idle {100 * found['bubble']:.0f} % of the time; {away}"


def _seconds(ms: float | None) -> str:
    if ms is None:
        return "never"
    return f"{ms:.0f} ms" if ms < 1e3 else f"{ms / 1e3:.1f} s"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
