"""``ruvcompile verify``, ``report`` and ``targets``: look at what was built, or could be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ruvcompile.cli import listing, results
from ruvcompile.cli.flags import common
from ruvcompile.cli.voice import finish, progress_of
from ruvcompile.errors import raise_all
from ruvcompile.targets import load_target, target_names


@click.command()
@click.argument("manifest")
@click.option("--model", help="The file the build came from. [default: as the manifest names it]")
@click.option(
    "--tokens",
    type=click.IntRange(0, 1_000_000),
    help="Compare with float64 at so many tokens of a text. [default: 2048 of mixed back ends or f16 links, else 0]",
)
@common
def verify(manifest: str, model: str | None, tokens: int | None, **flags: Any) -> None:
    """Compare the staged model with the uncut one, with what its weights mean, and with the file it came from.

    \b
    Example:
        ruvcompile verify dist/manifest.toml
    """
    from ruvcompile import compile as steps
    from ruvcompile.verify import failure

    result = steps.verify(Path(manifest), Path(model) if model else None, progress_of(flags), tokens)
    finish(flags, result, results.verify_text)
    if (problem := failure(result)) is not None:
        click.echo(str(problem), err=True)
        raise click.exceptions.Exit(problem.exit_code)


@click.command()
@click.argument("manifest")
@click.option("--run", help="JSON of `ruvrun bench` with one number of streams: what really happened, beside the plan.")
@common
def report(manifest: str, run: str | None, **flags: Any) -> None:
    """Write report.html beside MANIFEST again.

    \b
    Example:
        ruvcompile report dist/manifest.toml --run bench.json
    """
    from ruvcompile import compile as steps

    path = steps.report(Path(manifest), Path(run) if run else None)
    finish(flags, {"report": str(path)}, lambda result: f"wrote {result['report']}")


@click.command()
@click.option("--check", is_flag=True, help="Check the data and the templates of every target; exit 3 if any is wrong.")
@click.option("--markdown", is_flag=True, help="As a table in Markdown.")
@click.option("--targets-dir", help="A folder with more targets.")
@common
def targets(check: bool, markdown: bool, targets_dir: str | None, **flags: Any) -> None:
    """List the kinds of machines a model can be built for: those that come along, and those in ./targets.

    \b
    Example:
        ruvcompile targets --targets-dir my-targets
    """
    extra = Path(targets_dir) if targets_dir else None
    if check:
        from ruvcompile.whole_targets import check_targets  # which renders, and that takes a while to load

        raise_all(check_targets(extra))
    found = [load_target(name, extra) for name in sorted(target_names(extra))]
    text = listing.targets_markdown if markdown else listing.targets_text
    finish(flags, listing.targets_json(found), lambda _: text(found))
