"""From a chart to a drawing that stands in the page: Vega-Lite, drawn by ``vl-convert`` (the extra ``report``).

Why this library. A report is one file that must work offline, give the same bytes for the same build, and cost a build
at most a second. Measured for one bar chart on the machine this was written on:

| | in the page | at import | a chart | brings along |
| --- | --- | --- | --- | --- |
| plotly 6 | 4.8 MB of script | 0.04 s | 0.1 s | narwhals, packaging |
| bokeh 3.9 | 1.3 MB of script | 0.4 s | 0.05 s | pillow, tornado and five more |
| Vega-Lite, script in the page | 0.9 MB | 1.3 s | nothing | nothing |
| matplotlib 3.11, SVG | 28 KB a chart | 0.4 s | 0.07 s | pillow, fonttools and six more |
| Vega-Lite by vl-convert 1.9, SVG | 14 KB a chart | 0.003 s, the first chart 0.1 s | 0.02 s | nothing |

So charts are drawn when the report is written, and the page has no script at all: nothing can fail in the browser, it
prints as it looks, it can be sent to people whose mail programs remove scripts, and a reader that speaks is told what
each bar is. What a script would add is a tooltip (a title of the mark does the same) and another layout on a narrow
screen: every chart is drawn twice, for wide and for narrow, and the style sheet shows the one that fits.

Vega-Lite (University of Washington) and vl-convert (the Vega project) are under the BSD license. vl-convert is one
wheel, which runs Vega inside an own JavaScript engine with fonts of its own, so that a text is as wide on every
machine. Colours are names of the page's style (``var(--stage-1)``), which is how the charts become dark with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

EXTRA = "report"


def available() -> bool:
    """Whether the extra that draws charts is installed."""
    return find_spec("vl_convert") is not None


def draw(spec: Mapping[str, Any], name: str) -> str:
    """The SVG element of a Vega-Lite specification; ``name`` must be of this drawing alone within its page."""
    import vl_convert

    svg: str = vl_convert.vegalite_to_svg(json.dumps(spec))
    return _for_page(svg, name)


def _for_page(svg: str, name: str) -> str:
    # 1. It scales with the page, and says to nobody how large it is.
    svg = re.sub(r' width="[\d.]+" height="[\d.]+" (viewBox="[^"]*")', r" \1", svg, count=1)
    svg = svg.replace(' xmlns="http://www.w3.org/2000/svg"', "").replace(
        ' xmlns:xlink="http://www.w3.org/1999/xlink"', ""
    )
    svg = svg.replace(' version="1.1"', "")
    # 2. The names of clips count on through all drawings of a process: here they count from 0, and are the page's own.
    clips = list(dict.fromkeys(re.findall(r'id="(\w+)"', svg)))
    for number, clip in enumerate(clips):
        svg = re.sub(rf'(id="|url\(#){clip}\b', rf"\g<1>{name}-{number}", svg)
    # 3. What draws nothing.
    svg = re.sub(r'<path class="(?:back|fore)ground" aria-hidden="true" d="(?:M0,0h0v0h0Z)?"[^>]*/>', "", svg)
    # 4. What a mark is called is shown where a pointer rests on it.
    return re.sub(
        r'<(path|text|line|rect)((?: [\w-]+="[^"]*")*? aria-label="([^"]*)"(?: [\w-]+="[^"]*")*)/>',
        r"<\1\2><title>\3</title></\1>",
        svg,
    )
