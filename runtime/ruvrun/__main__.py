"""``python -m ruvrun``."""

from ruvrun.cli import main

main()
