"""What all charts share: their two sizes, their looks, and the form in which a page gets them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Spec = dict[str, Any]

FONT = "Liberation Sans, Arimo, Arial, Helvetica, sans-serif"
INK, FAINT, GRID = "var(--ink)", "var(--faint)", "var(--grid)"
STAGES = tuple(f"var(--stage-{number})" for number in range(8))
PARTS = tuple(f"var(--part-{number})" for number in range(6))
LINE, PAPER = "var(--line)", "var(--paper)"


@dataclass(frozen=True)
class Size:
    """How wide a drawing is, in px, and how much of it names may take."""

    name: str
    width: int
    label: int

    @property
    def narrow(self) -> bool:
        """Whether it is the drawing for a phone."""
        return self.name == "narrow"


WIDE = Size("wide", 1000, 260)
NARROW = Size("narrow", 360, 110)
SIZES = (WIDE, NARROW)
LONGEST = 48
"""Stages that a chart shows at most; the tables have all."""
_CHARACTER = 7  # px of a character of 12 px, in the widest of the fonts that a browser may take


@dataclass(frozen=True)
class Chart:
    """A chart: what it is called, the sentence that says what it shows, how many marks it has, and how to draw it."""

    id: str
    title: str
    says: str
    marks: int
    spec: Callable[[Size], Spec]


def framed(size: Size, layers: Sequence[Spec], **more: Any) -> Spec:
    """A whole specification of layers over each other."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": size.width,
        "padding": {"left": 12 if size.narrow else 24, "top": 6, "right": 12, "bottom": 4},
        "autosize": {"type": "fit-x", "contains": "padding"},
        "layer": list(layers),
        "config": {
            "background": None,
            "font": FONT,
            "view": {"stroke": None},
            "axis": {
                "labelColor": INK,
                "titleColor": FAINT,
                "gridColor": GRID,
                "domainColor": GRID,
                "tickColor": GRID,
                "labelFontSize": 12,
                "titleFontSize": 12,
                "titleFontWeight": "normal",
                "labelLimit": size.label,
                "labelSeparation": 8,
                "labelOverlap": "greedy",
            },
            "axisY": {"labelPadding": 6, "titlePadding": 12},
            "legend": {
                "orient": "top",
                "direction": "horizontal",
                "columns": 2 if size.narrow else 6,
                "title": None,
                "labelColor": INK,
                "labelFontSize": 12,
                "labelLimit": 130,
                "symbolType": "square",
                "symbolStrokeWidth": 0,
                "columnPadding": 20,
                "offset": 8,
            },
            "text": {"fill": INK, "fontSize": 12},
        },
        **more,
    }


def ms_axis(title: str, size: Size, most: float) -> Spec:
    """An axis of a length of time from 0 to ``most``."""
    return quantity_axis(f"{title}, ms", size, most)


def quantity_axis(title: str, size: Size, most: float) -> Spec:
    """An axis of any quantity from 0 to ``most``."""
    axis = {"title": title, "tickCount": 4 if size.narrow else 8, "format": ",f"}
    return {"axis": axis, "scale": {"domain": [0, most or 1.0], "nice": False, "zero": True}}


def beyond(size: Size, limit: int, names: Sequence[str], ends: Sequence[tuple[float, int]]) -> float:
    """Where an axis must end so that a text behind each bar is within the drawing.

    Args:
        size: of the drawing.
        limit: most px that the names of bars get.
        names: of the bars, which stand on the left.
        ends: where bars end, and how many characters stand behind them.
    """
    plot = size.width - 44 - min(limit, _CHARACTER * max(map(len, names)))
    least = max((at for at, _ in ends), default=0.0)
    return max((at * plot / max(plot - _CHARACTER * (count + 2), plot / 4) for at, count in ends), default=least)


def colours(names: Sequence[str], shades: Sequence[str]) -> Spec:
    """A fixed colour for each name, in the order of the legend."""
    return {"domain": list(names), "range": [shades[number % len(shades)] for number in range(len(names))]}


def described(field: str = "says") -> Spec:
    """Each mark is called what this field says: by readers that speak, and where a pointer rests on it."""
    return {"description": {"field": field}}


def show_ms(ms: float) -> str:
    """A time in ms, with as many digits as are worth reading."""
    if ms == 0:
        return "0"
    if 0 < ms < 0.001:
        return "< 0.001"
    if ms >= 100:
        return f"{ms:,.0f}"
    if ms >= 10:
        return f"{ms:.1f}"
    return f"{ms:.2f}" if ms >= 1 else f"{ms:.3f}"


def show_rate(value: float) -> str:
    """A number per second."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"
