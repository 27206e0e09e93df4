"""Reading machine code: the text cuobjdump prints, and real kernels where the tools are there."""

from __future__ import annotations

import pytest

from probes.core.types import Unavailable
from probes.engine import machine_code
from probes.report.rows import Row

TEXT = """
		Function : l1_padded_loop
        /*0000*/                   LDC R1, c[0x0][0x28] ;                /* 0x00000a00ff017b82 */
        /*0010*/              @!P0 LDG.E.128 R4, desc[UR4][R2.64] ;      /* 0x0000000402047981 */
        /*0020*/               @P1 BRA 0x40 ;                            /* 0x0000000000000947 */
        /*0030*/                   LDG.E.64.CONSTANT R8, desc[UR4][R2.64+0x10] ;
        /*0040*/                   NOP;
		Function : other
        /*0000*/                   EXIT ;
"""


def test_opcodes_come_out_in_order_by_kernel() -> None:
    found = machine_code.parse(TEXT)
    assert found == {
        "l1_padded_loop": ["LDC", "LDG.E.128", "BRA", "LDG.E.64.CONSTANT", "NOP"],
        "other": ["EXIT"],
    }
    assert machine_code.tally(found["l1_padded_loop"]) == {"LDC": 1, "LDG": 2, "BRA": 1}
    assert machine_code.first(found["l1_padded_loop"], "LDG") == 1
    assert machine_code.first(found["other"], "LDG") == -1


def test_the_difference_names_what_differs_most() -> None:
    cu = ["LDS"] * 2 + ["MOV"] + ["FADD"] * 15
    numba = ["LDS.128"] * 8 + ["MOV"] * 2 + ["FADD"] * 15 + ["NOP"] * 4
    assert machine_code.difference(cu, numba) == "25 instructions against 18 (LDS 8/2, MOV 2/1)"
    assert machine_code.difference(["LDS"], ["LDS"]) == "1 instructions against 1"


@pytest.mark.toolchain
def test_a_slow_twin_is_explained_and_a_quick_one_is_not() -> None:
    rows = [
        Row(probe="l1", case="c", variant=v, backend=b, source="measured", time_s=t)
        for v, b, t in (
            ("padded_loop", "cu", 1.0), ("padded_loop", "numba", 1.2), ("gpl_loop", "cu", 1.0),
            ("gpl_loop", "numba", 1.04), ("dispatch_dpl", "cu", 1.0), ("dispatch_dpl", "numba", 2.0),
            ("gpl_ring", "cu", 1.0), ("gpl_ring", "numba", 1.3),
        )
    ]  # fmt: skip
    try:
        machine_code.explain("l1", "sm_90", rows)
    except Unavailable as error:
        pytest.skip(str(error))
    told = {(r.variant, r.backend): r.notes for r in rows if r.notes}
    assert list(told) == [("padded_loop", "numba"), ("gpl_ring", "numba")], "of both kernel files"
    assert "1.20 x its C++ twin" in told["padded_loop", "numba"][0]
