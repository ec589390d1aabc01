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

That engine ends its process where it cannot have the address space it wants (``ulimit -v``, small containers). A build
of an hour must not be lost to its charts, nor should its peak memory be theirs; so all charts of a page are drawn in
one process of their own, which starts in 0.1 s.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

EXTRA = "report"
_LIBRARY = "vl_convert"
_PROGRAM = """
import json, sys, vl_convert
json.dump([vl_convert.vegalite_to_svg(spec) for spec in json.load(sys.stdin)], sys.stdout)
"""


class NotDrawnError(Exception):
    """Why there are no charts, as a sentence for the page."""


def draw(specs: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The SVG elements of Vega-Lite specifications, by names of which each is of one drawing alone within its page.

    Raises:
        NotDrawnError: the extra is not installed, or what draws did not live to the end.
    """
    if find_spec(_LIBRARY) is None:
        raise NotDrawnError(f"they are drawn by an extra that was not installed: pip install 'ruvcompile[{EXTRA}]'")
    words = [sys.executable, "-P", "-c", _PROGRAM]
    told = json.dumps(list(specs.values()))
    done = subprocess.run(words, input=told, capture_output=True, text=True, encoding="utf-8", check=False)
    if done.returncode < 0:
        raise NotDrawnError(f"what draws them was ended by {signal.Signals(-done.returncode).name}")
    if done.returncode:
        raise NotDrawnError(f"what draws them failed: {(done.stderr.splitlines() or [''])[-1]}")
    found: list[str] = json.loads(done.stdout)
    return {name: _for_page(svg, name) for name, svg in zip(specs, found, strict=True)}


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
