"""What start-up costs: ``python benchmarks/startup.py [--json] [--quick]``.

Each case runs in fresh processes, its bytecode compiled beforehand as an installation has it. A first process finds the
modules of other distributions that the case brings in; the others import these before the clock starts, so that what is
left is kvarena's own. CPU time, the least of many: what the work takes while nobody else wants the processor. What was
imported before is frozen, so that the garbage collector does not look at it in between.

The commands are timed whole, from the shell's side. Calls into pluggy are counted by the interpreter's profiler while a
storage with a hook plugin serves steps. The last rows follow docs/new.md from an empty folder to a green kit run, and
count what the examples' authors wrote.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pluggy
from rows import figure, show

from kvarena import ArenaConfig, Full, Layer, Part, PluginsConfig, StorageConfig, Window, build_storage, hookimpl
from kvarena.assembly.catalog import Catalog, Entry, installed_entries

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "tests" / "data" / "models" / "llama-3.1-8b.json"
KVARENA = [sys.executable, "-m", "kvarena.plugins.cli.start"]
IMPORT_MS, ASSEMBLY_MS = 60.0, 300.0
RUNS, RUNS_WITH_TORCH = 30, 8

CHILD = """
import contextlib, gc, importlib, json, sys, time
code, others = compile(sys.argv[1], "case", "exec"), json.loads(sys.argv[2])
for name in others:
    with contextlib.suppress(Exception):
        importlib.import_module(name)
gc.freeze()
began = time.process_time()
exec(code)
seconds = time.process_time() - began
def is_other(name, module):
    return name.partition(".")[0] != "kvarena" and "site-packages" in (getattr(module, "__file__", None) or "")
found = [name for name, module in list(sys.modules.items()) if is_other(name, module)]
print(json.dumps({"ms": 1000 * seconds, "others": found}))
"""

DEPENDENCIES = "import numpy, attrs, cattrs, click, importlib_metadata, pluggy, structlog"
IMPORT = "import kvarena"
FACE = "import kvarena\nfor name in kvarena.__all__: getattr(kvarena, name)"
LIST = "from kvarena import Catalog\nCatalog.installed()"
ASSEMBLY = """
from kvarena import ArenaConfig, Catalog, StorageConfig, build_storage
catalog = Catalog.installed()
for entry in catalog.entries():
    if entry.distribution == "kvarena" and (COMMANDS or entry.kind != "commands"):
        catalog.load(entry.kind, entry.name)
layers = [
    dict(index=[0, 1], layout="mha", kv_heads=2, head_dim=64),
    dict(index=[2, 3], layout="mha", kv_heads=2, head_dim=64, lifetime="window", window=512),
    dict(index=[4, 5], layout="short-conv", channels=64, columns=3, lifetime="state"),
]
config = StorageConfig(arena=ArenaConfig(memory="64MiB", context_tokens=4096), backend="host", layers=layers)
build_storage((), config, catalog)
"""


class Watch:
    """A hook plugin as any: told when a storage opens and closes."""

    calls = 0

    @hookimpl
    def kvarena_storage_opened(self, storage: Any) -> None:
        """Count."""
        Watch.calls += 1

    @hookimpl
    def kvarena_storage_closed(self, storage: Any) -> None:
        """Count."""
        Watch.calls += 1


SURROUNDINGS = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
"""A process keeps the bytecode that it compiles, so that the next one need not."""


def in_child(code: str, others: list[str]) -> dict[str, Any]:
    """Run the code in a fresh process that has imported these modules before."""
    command = [sys.executable, "-c", CHILD, code, json.dumps(others)]
    finished = subprocess.run(command, capture_output=True, text=True, env=SURROUNDINGS, check=False)
    if finished.returncode:
        sys.exit(finished.stderr)
    found: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return found


def own_ms(code: str, runs: int) -> float:
    """Milliseconds of the code beside the modules of others that it brings in."""
    others = in_child(code, [])["others"]
    return min(float(in_child(code, others)["ms"]) for _ in range(runs))


def whole_ms(code: str, runs: int) -> float:
    """Milliseconds of the code with all that it brings in."""
    return min(float(in_child(code, [])["ms"]) for _ in range(runs))


def command_ms(arguments: list[str], runs: int) -> float:
    """Milliseconds of a whole command, interpreter and all imports included."""

    def once() -> float:
        began = time.perf_counter()
        subprocess.run([*KVARENA, *arguments], stdout=subprocess.DEVNULL, env=SURROUNDINGS, check=True)
        return 1000 * (time.perf_counter() - began)

    once()
    return min(once() for _ in range(runs))


def hook_calls(steps: int) -> tuple[int, int]:
    """How often a hook plugin was called at assembly and release, and calls into pluggy and it while rows advance."""
    watch = Entry("plugins", "watch", "startup", "1", f"{__name__}:{Watch.__name__}")
    plugins = PluginsConfig(enable=("watch",))
    catalog = Catalog([*installed_entries(), watch], plugins)
    sys.modules.setdefault(__name__, sys.modules["__main__"])
    heads = catalog.load("layouts", "mha")(kv_heads=2, head_dim=64)
    layers = [Layer(0, (Part(heads, Full()),)), Layer(1, (Part(heads, Window(64)),))]
    arena = ArenaConfig(memory="16MiB", context_tokens=4096)
    storage = build_storage(layers, StorageConfig(arena=arena, backend="host", plugins=plugins), catalog)
    inside, seen = str(Path(pluggy.__file__).parent), 0

    def look(frame: FrameType, event: str, _: object) -> None:
        nonlocal seen
        name = frame.f_code.co_filename
        seen += event == "call" and (name.startswith(inside) or frame.f_code.co_name.startswith("kvarena_"))

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        rows = storage.open_batch(4)
        assert isinstance(rows, np.ndarray)
        for length in range(1, steps + 1):
            storage.step(rows, np.full(4, length))
            storage.flush()
        storage.close(rows)
    finally:
        sys.setprofile(before)
    storage.release()
    return Watch.calls, seen


def author_rows(*, quick: bool) -> list[dict[str, Any]]:
    """From an empty folder to a green kit run with ``kvarena new``; and what the packages under examples/ took."""
    with tempfile.TemporaryDirectory() as folder:
        site = {**SURROUNDINGS, "PYTHONPATH": f"{folder}/site"}
        command = [*KVARENA, "new", "layout", "kvarena-mine", "--into", folder]
        told = subprocess.run(command, capture_output=True, text=True, env=site, check=True).stdout
        commands = told.partition("next:\n")[2].splitlines()
        to_green = 2 + next(at for at, line in enumerate(commands) if "pytest" in line)  # kvarena new is the first
        lines = sum(int(count) for count in re.findall(r"(\d+) lines$", told, re.MULTILINE))
        rows = [
            figure("commands from an empty folder to a green kit run, with kvarena new", to_green, "commands"),
            figure("lines that are written for the author: code, test, project and README", lines, "lines"),
            figure("lines that the author writes", 0, "lines"),
        ]
        if not quick:
            rows.append(figure("its kit run, the whole process", kit_seconds(Path(folder), site), "s"))
    for example in sorted((ROOT / "examples").glob("kvarena-*/")):
        written = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in example.glob("*.py"))
        rows.append(figure(f"lines of Python in examples/{example.name}, its tests included", written, "lines", 149))
    return rows


def kit_seconds(folder: Path, site: dict[str, str]) -> float:
    """Install the package in the folder, and run its tests: they are green."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    package = str(folder / "kvarena-mine")
    subprocess.run([*pip, "--target", site["PYTHONPATH"], package], env=site, check=True, stdout=sys.stderr)
    began = time.perf_counter()
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    subprocess.run(tests, cwd=package, env=site, check=True, stdout=sys.stderr)
    return time.perf_counter() - began


def import_rows(runs: int, runs_with_torch: int, *, quick: bool) -> list[dict[str, Any]]:
    """What is imported, loaded and built."""
    built = "every built-in layout, lifetime, backend, policy and reader loaded, and a storage built on host"
    cases = {built: f"COMMANDS = False\n{ASSEMBLY}"}
    if not quick:
        cases["the same, and every command loaded"] = f"COMMANDS = True\n{ASSEMBLY}"
    return [
        figure("the dependencies alone, which tell how fast the machine is", whole_ms(DEPENDENCIES, runs), "ms"),
        figure("import kvarena, beside its dependencies", own_ms(IMPORT, runs), "ms", IMPORT_MS),
        figure("import kvarena and every name of it, likewise", own_ms(FACE, runs), "ms", IMPORT_MS),
        figure("all plugins found by their metadata, likewise", own_ms(LIST, runs), "ms"),
        figure("kvarena --help, the whole process", command_ms(["--help"], runs), "ms"),
        figure("kvarena plan, the whole process", command_ms(["plan", str(MODEL), "--memory", "40GiB"], runs), "ms"),
        *(
            figure(f"{case}, likewise", own_ms(code, runs_with_torch), "ms", ASSEMBLY_MS)
            for case, code in cases.items()
        ),
    ]


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="one document of rows")
    parser.add_argument("--quick", action="store_true", help="one run of each: figures mean little")
    given = parser.parse_args()
    runs = (1, 1) if given.quick else (RUNS, RUNS_WITH_TORCH)
    rows = import_rows(*runs, quick=given.quick)
    at_assembly, on_steps = hook_calls(8 if given.quick else 256)
    rows += [
        figure("hook calls while a storage opens and closes, one plugin with two hooks", at_assembly, "calls"),
        figure("hook calls on the step path", on_steps, "calls", 0),
    ]
    rows += author_rows(quick=given.quick)
    show(rows, as_json=given.json)


if __name__ == "__main__":
    main()
