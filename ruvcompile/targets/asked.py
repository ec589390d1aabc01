"""What a build asks of the kinds of machines in its fleet, held against what they have.

Asked for are the width of weights, the type of keys and values, the precision of what is computed and the back end.
What a target cannot do at all is refused, for all targets together; what only some of its back ends can leaves those.
"""

from __future__ import annotations

from dataclasses import replace

from ruvcompile.errors import RuvError, UsageError, raise_all
from ruvcompile.options import Options
from ruvcompile.targets.data import load_target
from ruvcompile.targets.nouns import Target
from ruvrun.backends import BACK_ENDS


def fleet_targets(options: Options) -> dict[str, Target]:
    """The targets of the fleet's nodes by name, once what was asked is known to be possible on each of them.

    Of key/value types a target then has the one that was asked for, and of back ends those that have it.
    """
    targets = {name: load_target(name, options.targets_dir) for name in {node.target for node in options.fleet.nodes}}
    problems: list[RuvError] = []
    for name, target in sorted(targets.items()):
        for flag, asked, has in (
            ("quant", options.quant, target.quants),
            ("kv-type", options.kv_type, target.kv_types),
            ("backend", options.backend, target.backends),
        ):
            if asked not in (None, "auto") and asked not in has:
                problems.append(
                    UsageError(
                        f"{flag}-unsupported",
                        f"target {name} has no --{flag} {asked}",
                        hint=f"it has: {', '.join(has)}",
                    )
                )
    raise_all(problems)
    found = {}
    for name, target in targets.items():
        backends = target.backends if options.backend in (None, "auto") else (options.backend,)
        found[name] = _with_kv_type(_with_precision(target, backends, options.precision or "f32"), options.kv_type)
    return found


def _with_precision(target: Target, backends: tuple[str, ...], asked: str) -> Target:
    """The target with those of these back ends that compute with numbers of that precision, and the types of keys and
    values that they then have; one has to.
    """
    kinds = {each: BACK_ENDS[each].kv_types.get(asked, ()) for each in backends}
    able = tuple(each for each in backends if set(kinds[each]) & set(target.kv_types))
    if not able:
        what = f"target {target.name} has no --precision {asked} on {', '.join(backends)}"
        raise UsageError("precision-unsupported", what, hint="it has: f32")
    had = tuple(kind for kind in target.kv_types if any(kind in kinds[each] for each in able))
    return replace(target.among(able), kv_types=had)


def _with_kv_type(target: Target, asked: str | None) -> Target:
    """The target with the back ends that have this type of keys and values; None: the target's own.

    Raises:
        UsageError: none of them has.
    """
    wanted = asked or target.kv_type
    backends = tuple(each for each in target.backends if wanted in BACK_ENDS[each].kinds)
    if not backends or wanted not in target.kv_types:
        names = ", ".join(target.backends)
        hint = f"it has: {', '.join(kind for kind in target.kv_types if kind in BACK_ENDS[target.backend].kinds)}"
        raise UsageError("kv-type-unsupported", f"{names} has no --kv-type {wanted}", hint=hint)
    return replace(target.among(backends), kv_types=(wanted,))
