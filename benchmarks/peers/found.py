"""Which peers can be imported here; a line on stderr says how to get one that cannot."""

import importlib
import sys
from types import ModuleType

from peers.stand_ins import is_installed

HOW = {
    "sglang": "pip download --no-deps sglang==0.5.23 && unzip -d sglang sglang-*.whl, then PYTHONPATH=sglang",
    "vllm": "pip download --no-deps vllm==0.33.0 && unzip -d vllm vllm-*.whl, then PYTHONPATH=vllm",
}


THERE = {peer: is_installed(peer) for peer in HOW}
"""Asked once, before one peer's side puts stand-ins where the other would be looked for."""


def works_of(peer: str) -> tuple[ModuleType, ModuleType] | None:
    """Our modules that drive the peer ('sglang' or 'vllm') and its works; None where it cannot be imported."""
    why = "it is not installed"
    if THERE[peer]:
        try:
            return importlib.import_module(f"peers.{peer}_side"), importlib.import_module(f"peers.{peer}_work")
        except (ImportError, FileNotFoundError) as error:
            why = str(error)
    print(f"no {peer} beside us: {why}; {HOW[peer]} (benchmarks/README.md)", file=sys.stderr)
    return None
