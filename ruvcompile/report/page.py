"""The page: a template, a style sheet, and the drawings, as one text."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

import jinja2
from markupsafe import Markup

from ruvcompile.quantities import show_bytes
from ruvcompile.report.charts.frame import SIZES, Chart, show_ms, show_rate
from ruvcompile.report.draw import NotDrawnError, draw
from ruvcompile.report.view import View
from ruvrun.costs import CostTable
from ruvrun.manifest import Manifest


def page_of(manifest: Manifest, costs: CostTable, view: View) -> str:
    """The whole of ``report.html``; where charts cannot be drawn, its tables and the reason."""
    drawn, missing = dict[str, Markup](), ""
    try:
        drawn = figures_of(view.charts)
    except NotDrawnError as error:
        missing = str(error)
    return _template().render(
        manifest=manifest,
        costs=costs,
        view=view,
        plan=view.figures,
        run=view.run,
        drawn=drawn,
        missing=missing,
        style=_style(),
    )


def figures_of(charts: Mapping[str, Chart]) -> dict[str, Markup]:
    """Each chart as a figure, drawn for every size. What is text in it was escaped by the library that drew it.

    Raises:
        NotDrawnError: with the reason.
    """
    svgs = draw({f"{name}-{size.name}": chart.spec(size) for name, chart in charts.items() for size in SIZES})
    return {name: Markup(_figure(chart, svgs)) for name, chart in charts.items()}


def _figure(chart: Chart, svgs: Mapping[str, str]) -> str:
    drawings = "".join(f'<div class="{size.name}">{svgs[f"{chart.id}-{size.name}"]}</div>\n' for size in SIZES)
    says = Markup.escape(chart.says)
    return f'<figure id="{chart.id}" data-marks="{chart.marks}">\n<figcaption>{says}</figcaption>\n{drawings}</figure>'


@cache
def _style() -> Markup:
    return Markup(resources.files("ruvcompile.report").joinpath("report.css").read_text("utf-8"))


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"bytes": show_bytes, "ms": show_ms, "rate": show_rate, "percent": _percent}
    environment.filters |= {"beside": _beside, "listed": _listed}
    return environment.from_string(resources.files("ruvcompile.report").joinpath("report.html.j2").read_text("utf-8"))


def _beside(ratio: float) -> str:
    """A rate as a share of another, in words."""
    if abs(ratio - 1) < 0.005:
        return "equal"
    return f"{100 * abs(1 - ratio):.0f} % {'slower' if ratio < 1 else 'faster'}"


def _listed(told: object) -> str:
    """What a rule wanted or a node has: one thing or several."""
    return ", ".join(str(each) for each in told) if isinstance(told, list | tuple) else str(told)


def _percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"
