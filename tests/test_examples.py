"""The packages under examples/: each is a distribution of its own, installed with pip, found by its entry points."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from doc_blocks import ROOT, blocks_of

from kvarena.assembly.catalog import KINDS

PACKAGES = sorted((ROOT / "examples").glob("kvarena-*"))
PAGES = {"kvarena-int8": "tutorial-layout", "kvarena-sinks": "tutorial-kind", "kvarena-thrift": "tutorial-policy"}
"""The page of the tutorial that grows each package."""

SHORTER_TESTS = {"kvarena-int8"}
"""Packages whose page shows the class of the kit alone; what else it tests is what the page does by hand."""

GREEN = "That is the first green run."
"""Where each page says so; what stands above it is what an author did until then."""

LINES_MAX = 150

KIND_CONFIG = {
    "model_type": "streaming_llama", "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 512, "vocab_size": 1000, "attention_sinks": 4,
    "sliding_window": 64, "layer_types": [*["sliding_attention"] * 3, "full_attention"],
}  # fmt: skip

MISSING = '[arena]\nmemory = "1MiB"\n\n[[layers]]\nindex = 0\nlayout = "latent"\nrow_bytes = 8\nlifetime = "sinks"\n'

pytestmark = pytest.mark.req("PLG-2")


def project_of(package: Path) -> Mapping[str, Any]:
    """What a package's pyproject.toml says of it."""
    project: Mapping[str, Any] = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def offers(package: Path) -> dict[tuple[str, str], str]:
    """What a package offers, by kind and name."""
    groups = project_of(package)["entry-points"].items()
    return {
        (group.removeprefix("kvarena."), name): target for group, points in groups for name, target in points.items()
    }


def ran(*words: str, site: Path | None, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command of Python in a process of its own, with the packages of ``site`` installed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KVARENA_", "PYTEST_", "PYTHON"))}
    ours = {"PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    if site is not None:
        ours["PYTHONPATH"] = str(site)
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, env=kept | ours, capture_output=True, text=True, check=False
    )


def kvarena(*words: str, site: Path | None, folder: Path, rc: int = 0) -> str:
    """What a kvarena command printed, on stdout where it went well and on stderr where it did not."""
    done = ran("kvarena.plugins.cli.start", *words, site=site, folder=folder)
    assert done.returncode == rc, done.stdout + done.stderr
    return done.stderr if rc else done.stdout


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all of them, installed with pip from copies, so that no build is left behind."""
    target, sources = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("sources")
    for package in PACKAGES:
        shutil.copytree(package, sources / package.name, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    how = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", "--no-build-isolation"]
    done = ran("pip", "install", *how, "--target", str(target), *map(str, sources.iterdir()), site=None, folder=sources)
    assert done.returncode == 0, done.stderr
    return target


def test_there_are_three() -> None:
    """A layout, a layer kind end to end, and policies; each has its page."""
    assert [package.name for package in PACKAGES] == sorted(PAGES)
    kinds = {kind for package in PACKAGES for kind, _ in offers(package)}
    assert kinds == {"layouts", "lifetimes", "models", "policies"}
    assert kinds <= set(KINDS)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_each_is_small_and_asks_for_kvarena_alone(package: Path) -> None:
    """Fewer than 150 lines of Python, its tests among them; one dependency; and it says what it is."""
    files = [file for file in package.rglob("*.py") if "build" not in file.relative_to(package).parts]
    lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)

    assert lines < LINES_MAX
    assert project_of(package)["dependencies"] == ["kvarena"]
    assert any(file.name.startswith("test_") for file in files)
    assert (package / "README.md").read_text(encoding="utf-8").startswith(f"# {package.name}\n")


@pytest.mark.req("PLG-1")
def test_all_that_they_offer_is_found_and_can_be_used(site: Path, tmp_path: Path) -> None:
    """``kvarena plugins`` lists each with its distribution and version; ``--check`` imports each."""
    keys = ("distribution", "version", "kind", "name")
    listed = json.loads(kvarena("plugins", "--json", site=site, folder=tmp_path))
    found = {tuple(entry[key] for key in keys): entry["target"] for entry in listed}
    offered = {
        (project_of(package)["name"], project_of(package)["version"], kind, name): target
        for package in PACKAGES
        for (kind, name), target in offers(package).items()
    }
    assert {words: found.get(words) for words in offered} == offered
    for kind in sorted({kind for _, _, kind, _ in offered}):
        checked = json.loads(kvarena("plugins", "--json", "--check", "--kind", kind, site=site, folder=tmp_path))
        usable = {tuple(entry[key] for key in keys) for entry in checked if entry["usable"]}
        assert {words for words in offered if words[2] == kind} <= usable


def test_what_their_readmes_show_is_a_config(site: Path, tmp_path: Path) -> None:
    """Each config in the README of a package is read, its settings too, where the package is installed."""
    shown = [(package, block) for package in PACKAGES for block in blocks_of(package / "README.md")]
    assert {block.language for _, block in shown} == {"toml"}
    for number, (_, block) in enumerate(shown):
        file = tmp_path / f"serve-{number}.toml"
        file.write_text(f'[arena]\nmemory = "1GiB"\n\n{block.text}', encoding="utf-8")
        kvarena("config", "show", file.name, site=site, folder=tmp_path)


@pytest.fixture(scope="session")
def own_runs(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Future[Any]]]:
    """The tests of each package, run from their file alone, side by side."""
    with ThreadPoolExecutor(len(PACKAGES)) as pool:
        runs = {}
        for package in PACKAGES:
            folder = tmp_path_factory.mktemp(package.name)
            tests = [str(shutil.copy(file, folder)) for file in package.glob("test_*.py")]
            words = ("pytest", "-q", "-p", "no:cacheprovider", *tests)
            runs[package.name] = pool.submit(ran, *words, site=site, folder=folder)
        yield runs


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_its_own_tests_pass(package: Path, own_runs: Mapping[str, Future[Any]]) -> None:
    """Installed, and run from its tests alone: what its author does."""
    done = own_runs[package.name].result()
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout


def test_a_kind_that_is_gone_is_missed_by_name(tmp_path: Path) -> None:
    """Without its package a config that names it gets one line: where, which name, and what there is."""
    (tmp_path / "serve.toml").write_text(MISSING, encoding="utf-8")
    (tmp_path / "policy.toml").write_text('[arena]\nmemory = "1MiB"\n\n[prefix]\neviction = "thrift-fading"\n')
    said = kvarena("plan", "serve.toml", "--memory", "1MiB", site=None, folder=tmp_path, rc=2)
    assert len(said.splitlines()) == 1
    assert "serve.toml" in said
    assert "no lifetime is named 'sinks'" in said
    words = ("replay", "--model", "m.json", "--trace", "t.csv", "--config", "policy.toml")
    said = kvarena(*words, site=None, folder=tmp_path, rc=2)
    assert len(said.splitlines()) == 1
    assert "prefix.eviction" in said
    assert "no policy is named 'thrift-fading'" in said


@pytest.mark.slow
def test_the_kind_is_planned_and_served_with_shared_prefixes(site: Path, tmp_path: Path) -> None:
    """From a config.json alone: its band is planned, a trace is served, and later requests start from earlier ones."""
    (tmp_path / "config.json").write_text(json.dumps(KIND_CONFIG), encoding="utf-8")
    with (tmp_path / "trace.jsonl").open("w", encoding="utf-8") as file:
        for number in range(12):
            row = {
                "timestamp": 500 * number,
                "input_length": 1100,
                "output_length": 40,
                "hash_ids": [0, 1, 10 + number],
            }
            file.write(json.dumps(row) + "\n")
    model = ("--model", "config.json", "--memory", "24MiB")
    plan = json.loads(kvarena("plan", "config.json", "--memory", "24MiB", "--json", site=site, folder=tmp_path))
    words = ("replay", *model, "--trace", "trace.jsonl", "--prefix-cache", "--json")
    served = json.loads(kvarena(*words, site=site, folder=tmp_path))

    rows = 3 * (2 * 2 * 32 * 2 + 4)  # of three layers: keys and values of two heads of 32, two bytes each; the position
    assert plan["window_bytes_per_token"] == {"68": rows}
    assert served["requests"]["done"] == 12
    assert served["requests"]["retractions"] == 0
    # the second request finds 1,024 tokens agreed, whose window is gone, but for the first page; it leaves one there
    assert served["cache"]["cached_tokens"] == 16 + 10 * 1024
    peak = {band["name"]: band["peak"] for band in served["bands"]}
    assert 0 < peak["sinks-4-64"] < peak["full"]


@pytest.mark.slow
def test_the_stress_harness_runs_worlds_of_the_kind(site: Path, tmp_path: Path) -> None:
    """``kvarena stress --config`` with layers of its lifetime and layout finds no promise broken."""
    table = '[[layers]]\nindex = {}\nlayout = "sink-rows"\nkv_heads = 1\nhead_dim = 4\nlifetime = "{}"\n{}\n'
    layers = table.format(0, "sinks", "sinks = 3\nwindow = 6\n") + table.format(1, "full", "")
    arena = '[arena]\nmemory = "12KiB"\npage_tokens = 4\ncontext_tokens = 64\nmax_running = 4\nforwards_in_flight = 2\n'
    (tmp_path / "world.toml").write_text(f"{arena}\n[prefix]\nshare = true\n\n{layers}", encoding="utf-8")
    words = ("stress", "--config", "world.toml", "--seeds", "0:4", "--ops", "300", "--json")
    found = json.loads(kvarena(*words, site=site, folder=tmp_path))
    assert found["seeds"] == 4
    assert not found["broken"]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_the_tutorial_ends_with_the_package(package: Path) -> None:
    """Whoever follows the page to its end has the files of the package, line for line."""
    written: dict[str, str] = {}
    for block in blocks_of(ROOT / "docs" / f"{PAGES[package.name]}.md"):
        if block.file:
            name, behind = block.file
            written[name] = (written[name] if behind else "") + block.text.partition("\n")[2]
    for file in package.glob("*.py"):
        if file.name.startswith("test_") and package.name in SHORTER_TESTS:
            continue
        assert written[file.name] == file.read_text(encoding="utf-8")
    mine, theirs = (
        tomllib.loads(text) for text in (written["pyproject.toml"], (package / "pyproject.toml").read_text())
    )
    shared = ("name", "version", "dependencies", "entry-points")
    assert [mine["project"][key] for key in shared] == [theirs["project"][key] for key in shared]
    assert mine["tool"] == theirs["tool"]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_the_tutorial_counts_what_an_author_writes(package: Path) -> None:
    """The steps, commands and lines to the first green run of the kit, and the lines of the package, are as it says."""
    page = ROOT / "docs" / f"{PAGES[package.name]}.md"
    text = page.read_text(encoding="utf-8")
    until = text.count("\n", 0, text.index(GREEN))
    blocks = [block for block in blocks_of(page) if block.line < until]
    commands = [line for block in blocks if block.language == "sh" for line in block.text.splitlines()]
    files = {block.file[0]: block.text.splitlines()[1:] for block in blocks if block.file}
    counts = [sum(bool(line.strip()) for line in lines) for lines in files.values()]
    module = package.name.replace("-", "_")
    kind = {"tutorial-layout": "layout", "tutorial-kind": "lifetime", "tutorial-policy": "policy"}[page.stem]
    says = " ".join(text.partition("## Counted")[2].split())
    package_lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in package.glob("*.py"))

    assert list(files) == ["pyproject.toml", f"{module}.py", f"test_{module}.py"]
    assert [" ".join(line.split()[:2]) for line in commands] == [
        f"mkdir {package.name}", f"cd {package.name}", "pip install", "python -m",
    ]  # fmt: skip
    assert "six steps (a folder, three files, an install, a run), four commands, and" in says
    assert f"{sum(counts)} lines that are not blank: {counts[0]} of `pyproject.toml`, {counts[1]} of the {kind}" in says
    assert says.endswith(f", {counts[2]} of its test.")
    assert re.findall(r"(\d+) lines\s+with\s+their\s+tests", text) == [str(package_lines)]
