"""Every kernel is compiled ahead of time for NVIDIA's and AMD's devices: no GPU is needed for that."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("gpu_ahead.py")
WORDS = {"copy_units", "zero_units"}
OTHERS = {"write_update", "translate_rows", "translate_rows of a large mirror"}


@pytest.mark.slow
def test_every_kernel_compiles_for_sm_90_and_gfx942(tmp_path: Path) -> None:
    """A cubin and an hsaco of each, for every size of words; offsets are 64 bits wide and long words are paired.

    Another process does it: this one may have the kernels under Triton's interpreter.
    """
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_DEFAULT_FP_FUSION": "1"}
    ended = subprocess.run(
        [sys.executable, str(PROGRAM)], capture_output=True, text=True, env=environment, timeout=540, check=False
    )
    assert ended.returncode == 0, ended.stderr
    made = [line.split("|") for line in ended.stdout.splitlines()]
    assert {(name, word) for name, word, *_ in made} == {
        *((name, word) for name in WORDS for word in ("i64", "i32", "i16", "u8")),
        *((name, "i32") for name in OTHERS),
    }
    assert {(target, binary) for _, _, target, binary, *_ in made} == {("sm_90", "cubin"), ("gfx942", "hsaco")}
    assert all(int(size) > 1000 for *_, size, _ in made)
    nvidia = {(name, word): features for name, word, target, _, _, features in made if target == "sm_90" and features}
    assert nvidia["copy_units", "i64"] == "16 bytes at once, 64-bit offsets"
