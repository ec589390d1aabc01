"""What a plan's links are known from: on measured costs it promises too much over a link that is not as assumed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from ruvcompile.plan.prices import ASSUMED, MEASURED, TOLD
from ruvcompile.plan.shapes import Solution
from ruvcompile.plan.tasks import Desk


def links_of(desk: Desk, solution: Solution) -> dict[str, Any]:
    """Part of the JSON of ``plan``: each link that is used, and what the least known of them is known from."""
    head, prices = desk.room.head, desk.room.prices
    ways = {(one.name, two.name): (one, two) for each in solution.members for one, two in pairwise([head, *each, head])}
    found = [
        {"from": sender, "to": receiver, "source": prices.link_source(*members)}
        for (sender, receiver), members in ways.items()
        if sender != receiver
    ]
    sources = {link["source"] for link in found}
    least = next((source for source in (ASSUMED, TOLD, MEASURED) if source in sources), None)
    return {"links": found} | ({"link_source": least} if least else {})
