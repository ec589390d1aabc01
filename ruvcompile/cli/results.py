"""What the commands say to a person: results as text. Pure; the command line prints it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ruvcompile.cli.plans import plan_text
from ruvcompile.cli.table import counted, wrapped
from ruvcompile.quantities import show_bytes
from ruvrun.bundle import BUNDLES
from ruvrun.costs import costs_text
from ruvrun.manifest import MANIFEST, NODES


def build_text(result: Mapping[str, Any], *, local: bool = True) -> str:
    """A build: its plan, where it is, what it took, and what to do next.

    Args:
        result: the JSON object of ``build``.
        local: whether every node is a process of this machine.
    """
    manifest, memory = result["manifest"], show_bytes(result["peak_rss_bytes"])
    done = f"built {manifest} in {result['seconds']:.1f} s, peak memory {memory}"
    if not local:
        folder = manifest.removesuffix(MANIFEST)
        done += f"\naddresses: as in {folder}{NODES}; after a change, copy it into node/ of each bundle"
        then = f"copy each directory of {folder}{BUNDLES} to its machine, and there: sudo ./node/install.sh"
    elif result.get("predicted_items_per_s") is not None:
        then = f"ruvrun run {manifest} --input in.npz --output out.npz"
    else:
        then = f"ruvrun serve {manifest}"
    return f"{plan_text(result)}\n\n{done}\nnext: {then}"


def probe_text(result: Mapping[str, Any]) -> str:
    """A probe: what is in it, and what to do next.

    Args:
        result: the JSON object of ``probe``.
    """
    folder, name = result["probe"], result["probe"].rstrip("/").rpartition("/")[2]
    return (
        f"wrote {folder}: {counted(result['units'], 'distinct part')} of {result['model']}, "
        f"{show_bytes(result['bytes'])} to copy; {show_bytes(result['drawn_bytes'])} of weights are drawn there\n"
        f"next: copy it to a machine of kind {result['target']}, and there: ruvrun profile {name} -o costs.toml"
    )


def profile_text(result: Mapping[str, Any]) -> str:
    """What was measured.

    Args:
        result: the JSON object of ``profile``.
    """
    return f"{costs_text(result)}\nwrote {result['costs']} after {result['seconds']:.1f} s"


def verify_text(result: Mapping[str, Any]) -> str:
    """Staged against uncut, and the quantised model against its source."""
    same = "identical" if result["identical"] else "NOT identical"
    cases = counted(result.get("cases", 0), "case")
    compared = f"{cases}, {result['tokens']} tokens" if result.get("tokens") else cases
    largest = result.get("max_abs_diff")
    apart = f"; largest difference {largest:.3g}" if largest is not None else ""
    what = "in company against alone" if result.get("mixed") or result.get("rounded") else "staged against uncut"
    lines = [f"{what}: {same} ({compared}{apart})"]
    lines += [_equality(each) for each in result.get("equality", [])]
    source = result.get("vs_source")
    if random := result.get("random"):
        lines.append(f"left to chance, so only their types were compared: {', '.join(random)}")
    if source:
        lines.append(
            f"against the file it came from: KL {source['kl']:.4f}, same first choice {100 * source['top1']:.1f} % "
            f"({source['tokens']:.0f} tokens)"
        )
    return "\n".join(lines)


def _equality(found: Mapping[str, Any]) -> str:
    """A pipeline against what its weights mean, and its back ends beside it."""

    def told(figures: Mapping[str, Any]) -> str:
        return f"KL {figures['mean_kl']:.3g}, same first choice {100 * figures['top1_agreement']:.2f} %"

    alone = "".join(f"; {backend} alone: {told(figures)}" for backend, figures in found["alone"].items())
    activations = "float" if found["floats"] else "quantised"
    return wrapped(
        f"{' + '.join(found['backends'])} ({activations} activations) against float64: {told(found)}, largest "
        f"difference of logits {found['max_logit_diff']:.3g} ({found['tokens']} tokens){alone}"
    )
