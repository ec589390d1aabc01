"""The chart of the shapes that were compared: what each yields with everyone at work, and for a single user."""

from __future__ import annotations

from collections.abc import Sequence

from ruvcompile.report.charts.frame import (
    FAINT,
    STAGES,
    Chart,
    Size,
    Spec,
    beyond,
    colours,
    described,
    framed,
    quantity_axis,
    show_rate,
)
from ruvcompile.report.stages import Choice


def choices_chart(choices: Sequence[Choice], what: str) -> Chart:
    """Rates of the shapes that were compared, with everyone at work and of a single user."""
    many, one = "all streams", "a single user"
    names = [choice.label for choice in choices]
    bars: list[Spec] = []
    for choice in choices:
        for who, rate in ((many, choice.many), (one, choice.one)):
            if rate is not None:
                text = f"{show_rate(rate)}"
                says = f"{choice.label}, {who}: {text} {what}/s"
                bars.append({"shape": choice.label, "who": who, "rate": rate, "text": text, "says": says})

    def spec(size: Size) -> Spec:
        label = {"labelLimit": 150 if size.narrow else size.label}
        y = {"field": "shape", "type": "nominal", "sort": names, "title": None, "axis": label}
        offset = {"field": "who", "type": "nominal", "sort": [many, one]}
        x = {"field": "rate", "type": "quantitative"}
        ends = [(bar["rate"], len(bar["text"])) for bar in bars]
        axis = quantity_axis(f"{what}/s", size, beyond(size, 150, names, ends))
        return framed(
            size,
            [
                {
                    "mark": {"type": "bar"},
                    "encoding": {
                        "y": y,
                        "yOffset": offset,
                        "x": {**x, **axis},
                        "color": {"field": "who", "type": "nominal", "scale": colours([many, one], (STAGES[0], FAINT))},
                        **described(),
                    },
                },
                {
                    "mark": {"type": "text", "align": "left", "dx": 4, "fontSize": 11, "aria": False},
                    "encoding": {"y": y, "yOffset": offset, "x": x, "text": {"field": "text"}},
                },
            ],
            data={"values": bars},
            height={"step": 17},
        )

    says = f"{what.capitalize()} per second of the plan and of the shapes it was compared with."
    if any(" x " in name for name in names):
        says += " 2 x 1 stage are two pipelines of one stage each, which share the streams."
    return Chart("choices", "The plan and what it was compared with", says, len(bars), spec)
