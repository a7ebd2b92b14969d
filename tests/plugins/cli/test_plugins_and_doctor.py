"""``kvarena plugins`` lists what is installed; ``kvarena doctor`` says what can run here."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvarena.assembly.catalog import KINDS, Catalog, Entry, installed_entries
from kvarena.assembly.config import PluginsConfig
from kvarena.plugins.cli.doctor import NO_GPU_SEEN, diagnosis
from kvarena.plugins.cli.main import run
from kvarena.terms.errors import ConfigError

Capture = pytest.CaptureFixture[str]


def listed(capsys: Capture, *arguments: str) -> list[dict[str, Any]]:
    assert run(["plugins", "--json", *arguments]) == 0
    documents: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return documents


@pytest.mark.req("PLG-1")
def test_each_built_in_is_listed_with_kind_distribution_and_version(capsys: Capture) -> None:
    """Layouts, lifetimes, backends, policies and commands are all there, from our own entry points."""
    rows = listed(capsys)
    ours = {(row["kind"], row["name"]) for row in rows if row["distribution"] == "kvarena"}

    for kind, names in {
        "layouts": {
            "mha",
            "mla",
            "latent",
            "index-key",
            "mamba1",
            "mamba2",
            "gated-delta",
            "kda",
            "lightning",
            "rg-lru",
        },
        "lifetimes": {"full", "window", "chunk", "state"},
        "backends": {"host", "cpu", "simulated", "cuda", "rocm"},
        "policies": {"nearest", "recent", "lazy", "eager", "none", "middle"},
        "commands": {"plan", "run", "replay", "plugins", "doctor"},
    }.items():
        assert {(kind, name) for name in names} <= ours
    assert all(row["version"] and row["target"] for row in rows)


def test_the_table_has_a_line_for_each(capsys: Capture) -> None:
    """Name, kind, distribution and version in one line, as a plugin's author looks for it."""
    assert run(["plugins"]) == 0
    lines = capsys.readouterr().out.splitlines()

    assert any(line.split()[:4] == ["mha", "layout", "kvarena", "0.1.0"] for line in lines)


def test_one_kind_can_be_asked_for(capsys: Capture) -> None:
    """``--kind layouts``, or ``layout``, leaves the others out; an unknown kind is refused."""
    assert {row["kind"] for row in listed(capsys, "--kind", "layouts")} == {"layouts"}
    assert {row["kind"] for row in listed(capsys, "--kind", "layout")} == {"layouts"}
    assert run(["plugins", "--kind", "layuot"]) == 2


def test_every_built_in_can_be_imported(capsys: Capture) -> None:
    """``--check`` imports each one of ours and finds no refusal."""
    run(["plugins", "--check", "--json"])
    rows = json.loads(capsys.readouterr().out)

    assert [row["refusal"] for row in rows if row["distribution"] == "kvarena" and not row["usable"]] == []


def test_a_refused_plugin_makes_the_check_fail(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken one is shown with its reason, the good one as usable, and the exit code is 2."""
    entries = [
        Entry("commands", "plugins", "kvarena", "0.1.0", "kvarena.plugins.cli.plugins:plugins"),
        Entry("layouts", "gone", "other", "1", "no_such_module_here:x"),
    ]
    monkeypatch.setattr(Catalog, "installed", classmethod(lambda cls, plugins=None: Catalog(entries, plugins)))

    assert run(["plugins", "--check", "--json"]) == 2
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["plugins"]["usable"]
    assert "no_such_module_here" in rows["gone"]["refusal"]


def test_doctor_names_what_runs_and_what_does_not(capsys: Capture) -> None:
    """The host backend runs anywhere; those for GPUs say why they do not, and that nobody ran them."""
    assert run(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)

    assert found["versions"]["python"].startswith("3.")
    assert found["versions"]["numpy"]
    assert found["backends"]["host"] == {"runs": True, "holds_bytes": False}
    for name in ("cuda", "rocm"):
        assert found["backends"][name]["runs"] or f"backend '{name}'" in found["backends"][name]["why"]
    assert NO_GPU_SEEN in found["untested"]
    assert run(["doctor"]) == 0
    assert "Untested in this version:" in capsys.readouterr().out


class Starved:
    """A backend that gets no memory."""

    def reserve(self, arena_bytes: int) -> None:
        raise ConfigError("no memory of this kind")


def test_a_backend_that_gets_no_memory_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backends are tried, not asked: the reason is the one that a run would meet."""
    catalog = Catalog([Entry("backends", "starved", "other", "1", "other:Starved")])
    monkeypatch.setattr(catalog, "load", lambda kind, name: Starved)

    assert diagnosis(catalog)["backends"]["starved"] == {"runs": False, "why": "no memory of this kind"}


def test_every_kind_has_a_word_for_one_of_it() -> None:
    """Messages say ``layout 'mha'``, not ``layouts 'mha'``."""
    assert all(word and not word.endswith("s") for word in KINDS.values())


def test_each_says_where_its_distribution_lies(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of its modules; for an editable install, the source that it is made of."""
    (tmp_path / "strange_source").mkdir()
    for name, origin in (("still", None), ("moving", tmp_path / "strange_source")):
        info = tmp_path / f"kvarena_{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kvarena-{name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[kvarena.layouts]\n{name} = strange_{name}:Layout\n")
        if origin:
            (info / "direct_url.json").write_text(json.dumps({"url": origin.as_uri(), "dir_info": {"editable": True}}))
    monkeypatch.syspath_prepend(tmp_path)
    rows = {row["name"]: row["lies_in"] for row in listed(capsys, "--kind", "layouts")}

    assert Path(rows["still"]) == tmp_path
    assert rows["moving"] == f"editable: {tmp_path / 'strange_source'}"


def test_a_name_that_two_offer_is_told_from_metadata(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are listed, the listing succeeds, and nothing is imported to find out."""
    both = [Entry("layouts", "twice", name, "1", f"no_such_module_{name}:Layout") for name in ("one", "two")]
    entries = [*installed_entries(), *both]
    monkeypatch.setattr(Catalog, "installed", classmethod(lambda cls, plugins=None: Catalog(entries, plugins)))
    assert run(["plugins"]) == 0
    out, err = capsys.readouterr()

    assert out.count("twice ") == 2
    assert err.startswith("kvarena plugins: two plugins offer the layout 'twice': one 1 (no_such_module_one) and two 1")


def test_as_json_each_says_who_else_offers_its_name(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads JSON need not read stderr for it; one of another kind, or that is left out, is none."""
    strange = [Entry("layouts", "twice", name, "1", f"no_such_module_{name}:Layout") for name in ("one", "two", "off")]
    entries = [*installed_entries(), *strange, Entry("policies", "twice", "three", "1", "no_such_module_three:x")]
    out = PluginsConfig(disable=("off",))
    monkeypatch.setattr(Catalog, "installed", classmethod(lambda cls, plugins=None: Catalog(entries, out)))
    rows = {(row["kind"], row["distribution"], row["name"]): row["also_offered_by"] for row in listed(capsys)}

    assert rows["layouts", "one", "twice"] == ["two 1"]
    assert rows["layouts", "two", "twice"] == ["one 1"]
    assert rows["policies", "three", "twice"] == []
    assert rows["layouts", "kvarena", "mha"] == []
