"""Sums over the items of every downset of a lattice, each handed on from a downset to those that have one item more."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ruvcompile.partition.lattice import Lattice

Amounts = TypeVar("Amounts", np.float64, np.int64)


def summed(lattice: Lattice, amounts: npt.NDArray[Amounts]) -> npt.NDArray[Amounts]:
    """Sums of ``amounts [items, columns]`` over every downset's items."""
    total = np.concatenate([np.zeros((1, *amounts.shape[1:]), amounts.dtype), np.cumsum(amounts, 0)])
    return handed_on(lattice, amounts, total[lattice.waists])


def handed_on(lattice: Lattice, amounts: npt.NDArray[Amounts], at_waists: npt.NDArray[Amounts]) -> npt.NDArray[Amounts]:
    """Sums of ``amounts [items, columns]``, from those ``at_waists [waists, columns]`` on."""
    found = np.zeros((lattice.count, *amounts.shape[1:]), amounts.dtype)
    found[lattice.bottoms] = at_waists
    for step in lattice.rounds:
        found[step.targets] = found[step.sources[step.starts]] + amounts[step.items[step.starts]]
    return found
