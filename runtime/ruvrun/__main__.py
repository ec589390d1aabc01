"""``python -m ruvrun``, and the command ``ruvrun``.

Everything else is imported here and not above, since that takes a while, and Ctrl-C in the middle of it is no bug.
"""

from __future__ import annotations

from typing import NoReturn

INTERRUPTED = 130


def main() -> NoReturn:
    """Run the command line; exits with its code."""
    try:
        from ruvrun.cli import main as run

        run()
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


if __name__ == "__main__":
    main()
