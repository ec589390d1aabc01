"""Where ONNX Runtime is asked for exact products of 8 bits."""

from __future__ import annotations

import pytest

from ruvrun.executors.sessions import cuts_off


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        pytest.param(("sse4_1", "avx", "avx2", "fma"), True, id="Haswell, Zen 3"),
        pytest.param(("avx2", "fma", "avx_vnni"), False, id="Alder Lake, N150"),
        pytest.param(("avx2", "fma", "avx512f", "avx512bw"), True, id="Skylake-X"),
        pytest.param(("avx2", "fma", "avx512f", "avx512bw", "avx_vnni"), True, id="whose AVX-512 has no VNNI"),
        pytest.param(("avx2", "fma", "avx512f", "avx512bw", "avx512_vnni"), False, id="Ice Lake, Zen 4"),
        pytest.param(("avx2", "avx512f", "avx512bw", "avx512_vnni", "amx_int8"), False, id="Sapphire Rapids"),
        pytest.param(("sse4_1",), False, id="a PC without AVX2, whose kernels are others"),
        pytest.param(("asimd", "asimddp"), False, id="Arm"),
    ],
)
def test_products_are_cut_off_where_there_is_no_vnni(features: tuple[str, ...], expected: bool) -> None:
    assert cuts_off(features) is expected
