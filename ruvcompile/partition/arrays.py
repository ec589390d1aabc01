"""The arrays of a search, by what is in them."""

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint64]
"""Sets of items, 64 to a word."""

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

Ranks = npt.NDArray[np.int32]
"""Places in an order; -1 where there is none."""
