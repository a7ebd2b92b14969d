"""``kvarena doctor``: what this machine has, which backends can run here, and what nobody has tested."""

import importlib.util
import os
import platform
from collections.abc import Mapping
from typing import Any

import click
import importlib_metadata

from kvarena.assembly.build import machine_bytes
from kvarena.assembly.catalog import Catalog
from kvarena.assembly.loader import make
from kvarena.plugins.cli.context import catalog_of, json_option
from kvarena.plugins.cli.plain import lines, pairs, print_json, show_table
from kvarena.terms.errors import KvarenaError
from kvarena.terms.units import format_bytes

PACKAGES = ("kvarena", "numpy", "torch", "transformers", "safetensors", "triton", "attrs", "pluggy")
NO_GPU_SEEN = (
    "GPUs: no GPU was there when this version was built. The backends cuda and rocm were tested on memory of the host, "
    "their kernels under Triton's interpreter and compiled for sm_90 and gfx942; the tests of `pytest -m gpu` and "
    "`kvarena stress --device cuda` were not run."
)
PROBE_BYTES = 1 << 16


@click.command()
@json_option
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Say what is installed, which backends can run here and which cannot, and what is untested."""
    report = diagnosis(catalog_of(ctx))
    if as_json:
        print_json(report)
    else:
        _print(report)


def diagnosis(catalog: Catalog) -> dict[str, Any]:
    """What ``--json`` prints: ``versions``, ``machine``, ``backends`` by name, ``plugins_refused``, ``untested``."""
    backends = {name: _backend(catalog, name) for name in catalog.names("backends")}
    return {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "cores": os.cpu_count(),
            "memory_bytes": machine_bytes(),
        },
        "backends": backends,
        "plugins": len(catalog.entries()),
        "untested": _untested(backends),
    }


def _version(name: str) -> str | None:
    try:
        return str(importlib_metadata.version(name))
    except importlib_metadata.PackageNotFoundError:
        return None


def _backend(catalog: Catalog, name: str) -> dict[str, Any]:
    """Whether a backend can be made and gives memory: it is tried with a few pages, not asked."""
    try:
        device = make(catalog, "backends", name)
        device.reserve(PROBE_BYTES)
        device.close()
    except KvarenaError as error:
        return {"runs": False, "why": str(error)}
    except (OSError, RuntimeError, MemoryError) as error:
        return {"runs": False, "why": f"{type(error).__name__}: {error}"}
    return {"runs": True, "holds_bytes": bool(device.holds_bytes)}


def _untested(backends: Mapping[str, Any]) -> list[str]:
    """What this version does not cover, said rather than left to be found."""
    lines = [
        NO_GPU_SEEN,
        "CUDA graphs: none was captured or replayed.",
        "Systems other than Linux on x86-64, and Python other than 3.11: not tested.",
    ]
    if importlib.util.find_spec("torch") is None:
        lines.append("torch is not installed: plan and replay work, run and the cpu backend do not.")
    if not backends.get("cpu", {}).get("runs"):
        lines.append("The cpu backend cannot run here: nothing on this machine can hold real bytes.")
    return lines


def _print(report: Mapping[str, Any]) -> None:
    machine, memory = report["machine"], report["machine"]["memory_bytes"]
    facts = {name: version or "not installed" for name, version in report["versions"].items()}
    facts["machine"] = f"{machine['system']}, {machine['cores']} cores" + (
        f", {format_bytes(memory)}" if memory else ""
    )
    lines(pairs(facts), "")
    rows = []
    for name, found in report["backends"].items():
        runs = "holds memory" if found.get("holds_bytes") else "plans and replays, holds no bytes"
        rows.append([name, "yes" if found["runs"] else "no", runs if found["runs"] else found["why"]])
    show_table(["backend", "runs here", ""], rows)
    lines("", "Untested in this version:", *(f"  - {line}" for line in report["untested"]))
