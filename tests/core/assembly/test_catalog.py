"""Plugins are found by metadata, loaded by name, and a bad one spoils nothing but its own name."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from kvarena.assembly.catalog import NO_AUTOLOAD, Catalog, Entry
from kvarena.assembly.config import PluginsConfig
from kvarena.terms.errors import ConfigError, MissingExtraError, PluginError
from kvarena.terms.lifetimes import Window

MINE = Entry("lifetimes", "window", "kvarena", "0.1.0", "kvarena.terms.lifetimes:Window")


def distribution(folder: Path, name: str, version: str, points: str, module: str = "") -> None:
    """Lay down an installed distribution: its module and its metadata, as pip would."""
    package = name.replace("-", "_")
    (folder / f"{package}.py").write_text(textwrap.dedent(module))
    info = folder / f"{package}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(textwrap.dedent(points))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose distributions are installed for one test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv(NO_AUTOLOAD, raising=False)
    return tmp_path


@pytest.mark.req("PLG-1")
def test_our_own_plugins_come_in_by_the_same_door() -> None:
    """The built-in lifetimes are entry points of kvarena's distribution, loaded when named."""
    catalog = Catalog.installed()

    assert catalog.load("lifetimes", "window") is Window
    assert {entry.distribution for entry in catalog.entries("lifetimes")} >= {"kvarena"}
    assert {"full", "window", "chunk", "state"} <= set(catalog.names("lifetimes"))


@pytest.mark.req("PLG-1")
@pytest.mark.parametrize(
    ("kind", "name", "home"),
    [
        ("layouts", "mha", "kvarena.layouts"),
        ("lifetimes", "chunk", "kvarena.terms"),
        ("backends", "host", "kvarena.backends"),
        ("policies", "nearest", "kvarena.policies"),
        ("models", "llama", "kvarena.plugins.models"),
    ],
)
def test_without_its_entry_point_a_built_in_is_not_there(kind: str, name: str, home: str) -> None:
    """Core knows no built-in by heart: each is what its entry point names, and gone when that is gone."""
    entries = Catalog.installed().entries()
    assert Catalog(entries).load(kind, name).__module__.startswith(home)
    with pytest.raises(PluginError, match=f"'{name}'"):
        Catalog(entry for entry in entries if (entry.kind, entry.name) != (kind, name)).load(kind, name)


@pytest.mark.req("PLG-1")
def test_listing_imports_nothing() -> None:
    """Neither torch nor any plugin's module is imported by a listing."""
    code = (
        "import sys; from kvarena.assembly.catalog import Catalog; c = Catalog.installed(); "
        "assert len(c.entries()) > 20; "
        "far = ('torch', 'transformers', 'kvarena.layouts', 'kvarena.backends', 'kvarena.plugins'); "
        "bad = [m for m in sys.modules if m.startswith(far)]; "
        "sys.exit(', '.join(bad) or None)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr == ""


def test_a_strangers_plugin_is_found_and_loaded(site: Path) -> None:
    """A distribution that is installed beside us adds a layout without a change to ours."""
    distribution(
        site,
        "kvarena-rowscale",
        "0.1",
        "[kvarena.layouts]\nrowscaled-int8 = kvarena_rowscale:RowScaled\n",
        "class RowScaled: name = 'rowscaled-int8'\n",
    )
    catalog = Catalog.installed()

    assert catalog.load("layouts", "rowscaled-int8").name == "rowscaled-int8"
    assert "layout 'rowscaled-int8' (kvarena-rowscale 0.1)" in map(str, catalog.entries("layouts"))


@pytest.mark.req("PLG-3")
def test_two_owners_of_one_name_are_refused_naming_both(site: Path) -> None:
    """Only that name is refused, only when it is asked for; the others still load."""
    distribution(site, "other", "0.2", "[kvarena.lifetimes]\nwindow = other:W\n", "W = object\n")
    catalog = Catalog.installed()

    with pytest.raises(PluginError) as caught:
        catalog.load("lifetimes", "window")
    assert str(caught.value) == (
        "two plugins offer the lifetime 'window': kvarena 0.1.0 (kvarena.terms.lifetimes) and other 0.2 (other); "
        "uninstall one, or rename yours, or name one's distribution in [plugins] disable"
    )
    assert catalog.load("lifetimes", "full").name == "full"
    assert Catalog.installed(PluginsConfig(disable=("other",))).load("lifetimes", "window") is Window


@pytest.mark.req("PLG-3")
def test_a_plugin_that_fails_to_import_is_a_stored_refusal(site: Path) -> None:
    """It is listed, raised by its own name each time, and imported only once."""
    distribution(
        site,
        "broken-one",
        "3.1",
        "[kvarena.layouts]\nbroken = broken_one:X\ngone = broken_two:X\n",
        "import builtins\nbuiltins.broken_imports = getattr(builtins, 'broken_imports', 0) + 1\n1 / 0\n",
    )
    catalog = Catalog.installed()

    assert "broken" in catalog.names("layouts")
    for _ in range(2):
        with pytest.raises(
            PluginError, match=r"layout 'broken' \(broken-one 3.1\): ZeroDivisionError: division by zero"
        ):
            catalog.load("layouts", "broken")
    assert sys.modules["builtins"].broken_imports == 1  # type: ignore[attr-defined]
    with pytest.raises(PluginError, match=r"layout 'gone' \(broken-one 3.1\): ModuleNotFoundError: .*broken_two"):
        catalog.load("layouts", "gone")
    assert catalog.load("lifetimes", "window") is Window


def test_an_attribute_that_is_not_there_is_a_refusal(site: Path) -> None:
    """The entry point names something that its module lacks."""
    distribution(site, "hollow", "1", "[kvarena.layouts]\nhollow = hollow:Absent\n")

    with pytest.raises(PluginError, match=r"layout 'hollow' \(hollow 1\): AttributeError: .*Absent"):
        Catalog.installed().load("layouts", "hollow")


def test_an_unknown_name_is_told_the_nearest() -> None:
    """A misspelt name or kind costs one look, not a search."""
    catalog = Catalog([MINE])

    with pytest.raises(PluginError, match=r"no lifetime is named 'windw'; did you mean 'window'\?"):
        catalog.load("lifetimes", "windw")
    with pytest.raises(PluginError, match=r"no plugins are of the kind 'lifetime'; did you mean 'lifetimes'\?"):
        catalog.load("lifetime", "window")
    with pytest.raises(PluginError, match=r"no tier is named 'files'; none is installed"):
        catalog.load("tiers", "files")


@pytest.mark.req("PLG-3")
def test_a_disabled_plugin_is_not_listed_and_says_why() -> None:
    """By its name, by kind and name, or by its distribution."""
    for word in ("window", "lifetimes:window", "kvarena"):
        catalog = Catalog([MINE], PluginsConfig(disable=(word,)))
        assert catalog.entries() == ()
        with pytest.raises(
            PluginError, match=r"lifetime 'window' \(kvarena 0.1.0\) is installed, but \[plugins\] disable"
        ):
            catalog.load("lifetimes", "window")


def test_a_word_in_plugins_that_names_nothing_is_refused() -> None:
    """A misspelt ``disable`` would otherwise disable nothing, in silence."""
    with pytest.raises(ConfigError, match=r"plugins.disable: no installed plugin is named 'windwo'; did you mean"):
        Catalog([MINE], PluginsConfig(disable=("windwo",)))


@pytest.mark.req("PLG-3")
def test_autoloading_can_be_switched_off(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the variable set, only our own plugins and those enabled by name are there."""
    points = "[kvarena.layouts]\nstranger = stranger:X\n[kvarena.plugins]\nwatch = stranger:X\n"
    distribution(site, "stranger", "1", points, "X = 4\n")
    monkeypatch.setenv(NO_AUTOLOAD, "1")
    closed, opened = Catalog.installed(), Catalog.installed(PluginsConfig(enable=("stranger",)))

    with pytest.raises(PluginError, match=rf"but {NO_AUTOLOAD} is set; name it in \[plugins\] enable"):
        closed.load("layouts", "stranger")
    assert closed.load("lifetimes", "window") is Window
    assert opened.load("layouts", "stranger") == 4


@pytest.mark.req("PLG-3")
@pytest.mark.parametrize("place", ["module", "package"])
def test_a_plugin_pinned_to_another_api_is_refused(site: Path, place: str) -> None:
    """``kvarena_api = 2`` in the plugin's module or package means: not with this version."""
    package = site / "later"
    package.mkdir()
    (package / "__init__.py").write_text("kvarena_api = 2\n" if place == "package" else "")
    (package / "layout.py").write_text("X = 1\n" + ("kvarena_api = 2\n" if place == "module" else ""))
    catalog = Catalog([Entry("layouts", "later", "later", "9", "later.layout:X")])
    sys.modules.pop("later", None)
    sys.modules.pop("later.layout", None)

    with pytest.raises(PluginError, match=r"layout 'later' \(later 9\): it was written for plugin API 2, and .* API 1"):
        catalog.load("layouts", "later")


def test_a_missing_extra_is_named_with_its_command(site: Path) -> None:
    """What an optional extra brings is asked for by the command that installs it."""
    distribution(site, "needs-it", "1", "", "import not_there_at_all\n")
    requires = ("attrs>=25", "not-there-at-all>=2 ; extra == 'speed'")
    ours = Catalog([Entry("backends", "x", "kvarena", "0.1.0", "needs_it:X", requires=requires)])
    named = Catalog([Entry("backends", "x", "kvarena", "0.1.0", "needs_it:X", ("hf",), requires)])
    theirs = Catalog([Entry("backends", "x", "needs-it", "1", "needs_it:X", requires=requires)])

    with pytest.raises(MissingExtraError, match=r"pip install 'kvarena\[speed\]'"):
        ours.load("backends", "x")
    with pytest.raises(MissingExtraError, match=r"pip install 'kvarena\[hf\]'"):
        named.load("backends", "x")
    with pytest.raises(PluginError, match=r"backend 'x' \(needs-it 1\): .*pip install 'needs-it\[speed\]'"):
        theirs.load("backends", "x")


def test_a_plugin_that_leaves_at_import_is_a_refusal(site: Path) -> None:
    """``sys.exit`` in a stranger's module takes no command along."""
    distribution(site, "leaver", "1", "[kvarena.layouts]\nleaver = leaver:X\n", "raise SystemExit(7)\n")
    with pytest.raises(PluginError, match="SystemExit: 7"):
        Catalog.installed().load("layouts", "leaver")
