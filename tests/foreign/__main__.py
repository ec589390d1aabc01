"""Run every case and write the table: ``python -m tests.foreign``, some minutes on two cores."""

from __future__ import annotations

import sys

from tests.foreign.cases import collect
from tests.foreign.judging import judge_all
from tests.foreign.table import PATH, dump

if __name__ == "__main__":
    verdicts = judge_all(collect(), tell=lambda text: print(text, file=sys.stderr))
    for each in verdicts:
        if each.failed:
            print(f"{each.name}: {each.what}", file=sys.stderr)
    PATH.write_text(dump(verdicts), "utf-8")
    print(PATH.read_text("utf-8").partition("[cases]")[0])
