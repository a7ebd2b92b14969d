"""``kvarena new`` writes a package whose kit run is green, or says in one line why it writes nothing."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kvarena.assembly.build import build_storage
from kvarena.assembly.catalog import Catalog
from kvarena.assembly.config import StorageConfig, structure
from kvarena.plugins.cli.main import run
from kvarena.plugins.cli.new import write_folder
from kvarena.plugins.scaffold.package import POLICIES, SORTS, Names, package
from kvarena.terms.errors import ConfigError

Capture = pytest.CaptureFixture[str]


def asked(sort: str) -> list[str]:
    """The command line's words for one sort."""
    return ["policy", "--sort", sort] if sort in POLICIES else [sort]


def name_of(sort: str) -> str:
    return f"kvarena-my-{sort}"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a new package of each sort, and ``site``, where pip has installed them all."""
    folder = tmp_path_factory.mktemp("new")
    for sort in SORTS:
        assert run(["new", *asked(sort), name_of(sort), "--into", str(folder)]) == 0
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-index"]
    where = ["--no-build-isolation", "--target", str(folder / "site")]
    subprocess.run([*pip, *where, *(str(folder / name_of(sort)) for sort in SORTS)], check=True)
    return folder


def python(packages: Path, *arguments: str, folder: str = ".") -> subprocess.CompletedProcess[str]:
    """Run Python where the new packages are installed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KVARENA_", "PYTEST_"))}
    surroundings = {**kept, "PYTHONPATH": str(packages / "site"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=packages / folder, env=surroundings, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.slow
@pytest.mark.req("PLG-2")
@pytest.mark.parametrize("sort", SORTS)
def test_the_kit_run_of_a_new_package_is_green(packages: Path, sort: str) -> None:
    """Generated, installed and tested, with no line edited: every promise of its kind is kept."""
    finished = python(packages, "-m", "pytest", "-q", "-p", "no:cacheprovider", folder=name_of(sort))

    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert re.search(r"\b[1-9]\d* passed", finished.stdout)


@pytest.mark.req("PLG-3")
def test_new_packages_are_listed_and_usable(packages: Path) -> None:
    """``kvarena plugins --check`` shows each with its distribution, found by its entry point, and refuses none."""
    finished = python(packages, "-m", "kvarena.plugins.cli.start", "plugins", "--check")
    rows = {line.split()[0]: line for line in finished.stdout.splitlines()}

    assert finished.returncode == 0, finished.stdout + finished.stderr
    for sort in SORTS:
        assert re.fullmatch(rf"my-{sort} .*\b{name_of(sort)} 0\.1\.0 .* ok", rows[f"my-{sort}"])


@pytest.mark.req("PLG-2")
@pytest.mark.parametrize("sort", SORTS)
def test_the_config_of_its_readme_builds_a_storage(packages: Path, sort: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the README shows is a config that names the plugin, and a storage is built with it."""
    monkeypatch.syspath_prepend(str(packages / "site"))
    readme = (packages / name_of(sort) / "README.md").read_text(encoding="utf-8")
    config = structure(StorageConfig, tomllib.loads(readme.partition("```toml\n")[2].partition("```")[0]), "README.md")
    storage = build_storage((), config, Catalog.installed(config.plugins))
    row = storage.open()

    assert isinstance(row, int)
    assert "my-" in str((config.backend, config.policies, config.prefix, config.layers))
    storage.release()


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=lambda words: words[0])
def test_a_new_package_is_clean(packages: Path, command: list[str]) -> None:
    """Ruff finds nothing, in any of them, under the settings that they bring."""
    pytest.importorskip("ruff")
    for sort in SORTS:
        finished = python(packages, "-m", "ruff", *command, "--no-cache", ".", folder=name_of(sort))
        assert finished.returncode == 0, finished.stdout


def test_it_says_what_it_wrote_and_what_is_next(tmp_path: Path, capsys: Capture) -> None:
    """The folder, each file with its lines, and the commands from there to a green run."""
    assert run(["new", "policy", "kvarena-tight", "--into", str(tmp_path / "my plugins")]) == 0
    told = capsys.readouterr().out.splitlines()
    folder = tmp_path / "my plugins" / "kvarena-tight"

    assert told[0] == f"{folder}: a compaction policy named 'tight'"
    for file in folder.iterdir():
        assert f"  {file.name}  {len(file.read_text(encoding='utf-8').splitlines())} lines" in told
    assert told[told.index("next:") + 1 :] == [
        f"  cd '{folder}'",
        "  pip install -e '.[test]'",
        "  python -m pytest",
        "  kvarena plugins --kind policies",
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["layout", "mha"], "a layout 'mha' of kvarena 0.1.0 is installed; choose another name, such as "),
        (["layout", "json"], "a module 'json' is installed; choose another name"),
        (["layout", "kvarena"], "a module 'kvarena' is installed; choose another name"),
        *(
            (["layout", name], f"NAME {name!r}: a module called {name!r} would hide what Python, pytest or the system")
            for name in ("list", "print", "none", "self", "con", "match", "conftest")
        ),
        (["layout", "kvarena-x", "--into", "a\0b"], "no file can be called so: "),
        (["layout", "a b"], "NAME 'a b': a distribution's name is letters and digits"),
        (["layout", "kvarena-there"], "is there already; choose another name, or --into another folder"),
        (["layout", "kvarena-x", "--sort", "holes"], "only a policy has one"),
        (["layout", "kvarena-x", "--into", "file"], "cannot be made: Not a directory; choose another folder by --into"),
        (["lay", "kvarena-x"], "'lay' is not one of 'layout', 'lifetime', 'policy', 'backend'"),
        (["policy", "kvarena-x", "--sort", "hole"], "'hole' is not one of 'compaction', 'eviction', "),
    ],
)
def test_what_cannot_be_written_is_refused(
    arguments: list[str], words: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is taken or cannot be, a folder that is there, a kind that is none: one line, exit code 2."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kvarena-there").mkdir()
    (tmp_path / "file").touch()

    assert run(["new", *arguments]) == 2
    told = capsys.readouterr()
    assert words in told.err
    assert (told.err.count("\n"), told.out) == (1, "")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "kvarena-there"]


def test_nothing_is_left_half_written(tmp_path: Path) -> None:
    """A file that cannot be written takes the whole folder with it, and the error names the place."""
    folder = tmp_path / "kvarena-x"
    with pytest.raises(ConfigError, match=f"^{re.escape(str(folder))}: cannot be written: "):
        write_folder(folder, {"one.py": "", "no/such/two.py": ""})

    assert not folder.exists()


@pytest.mark.parametrize("sort", SORTS)
def test_the_page_counts_its_lines(sort: str) -> None:
    """docs/new.md says how many lines of code and of tests each sort comes with."""
    page = (Path(__file__).parents[3] / "docs" / "new.md").read_text(encoding="utf-8")
    names = Names.of(name_of(sort))
    files = package(sort, names)
    first = f"| `policy` | `{sort}` |" if sort in POLICIES else f"| `{sort}` | |"
    (row,) = [line for line in page.splitlines() if line.startswith(first)]

    counts = [files[name].count("\n") for name in (f"{names.module}.py", f"test_{names.module}.py")]
    assert [int(cell) for cell in row.split("|")[-3:-1]] == counts


def test_a_name_says_what_configs_say() -> None:
    """``kvarena-`` in front of a distribution's name is not repeated in configs."""
    assert Names.of("kvarena-row-scale").entry == Names.of("row-scale").entry == "row-scale"
