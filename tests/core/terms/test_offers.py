"""What is installed is read in one place, for whoever asks for a plugin and whoever tells whose one is."""

import os
from collections.abc import Iterator
from pathlib import Path

import importlib_metadata
import pytest

from kvarena.assembly.catalog import Catalog, installed_entries
from kvarena.plugins.cli.main import run
from kvarena.terms.offers import Offer, offers, survey
from kvarena.terms.owners import owner_of

METADATA = "Metadata-Version: 2.1\nName: kvarena-many\nVersion: 5\nRequires-Dist: scipy; extra == 'big'\n"
POINTS = "[kvarena.layouts]\nx = many_m1:X [big]\n[kvarena.future]\ny = many_m1\n[console_scripts]\nz = many_m1:z\n"


def test_an_offer_is_what_the_metadata_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of our groups alone, those of a kind that is not known yet too; as it is now, not as it was."""
    before = set(offers())
    monkeypatch.syspath_prepend(tmp_path)
    info = tmp_path / "kvarena_many-5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA, encoding="utf-8")
    (info / "entry_points.txt").write_text(POINTS, encoding="utf-8")
    whose = ("kvarena-many", "5")
    requires = ("scipy; extra == 'big'",)

    assert set(offers()) - before == {
        Offer("layouts", "x", "many_m1:X", *whose, ("big",), requires),
        Offer("future", "y", "many_m1", *whose, (), requires),
    }


def test_the_catalog_and_the_owner_read_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """One walk over the distributions for each question, and both see what it found."""
    reads: list[int] = []
    point = importlib_metadata.EntryPoint("o", f"{__name__}:OURS", "kvarena.layouts")

    class Lent(importlib_metadata.Distribution):
        entry_points = (point,)

        def read_text(self, filename: str) -> str | None:
            return {"METADATA": METADATA, "entry_points.txt": "[kvarena.layouts]"}.get(filename)

        def locate_file(self, path: str | os.PathLike[str]) -> Path:
            return Path(path)

    def lent() -> Iterator[importlib_metadata.Distribution]:
        reads.append(1)
        return iter([Lent()])

    monkeypatch.setattr(importlib_metadata, "distributions", lent)
    monkeypatch.setattr(importlib_metadata, "distribution", lambda name: Lent())
    (entry,) = installed_entries()

    assert f"{entry.distribution} {entry.version}" == owner_of(test_an_offer_is_what_the_metadata_says)
    assert (entry.name, len(reads)) == ("o", 2)


def lay(folder: Path, name: str, points: str | bytes, *, metadata: str | bytes | None = None) -> Path:
    """A distribution of version 1 in a folder of the path, by its metadata alone."""
    info = folder / f"{name}-1.dist-info"
    info.mkdir()
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n" if metadata is None else metadata
    for file, content in (("METADATA", text), ("entry_points.txt", points)):
        (info / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    return info


@pytest.mark.req("PLG-1")
@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("xe =", "'' is no module:attribute"),
        ("xf = :X", "':X' is no module:attribute"),
        ("xh = not a valid", "'not a valid' is no module:attribute"),
        ("= kvb:X", "it has no name"),
    ],
)
def test_a_broken_entry_point_is_refused_alone(
    line: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is listed, fails the check, and takes neither another plugin nor a command down."""
    monkeypatch.syspath_prepend(tmp_path)
    lay(tmp_path, "kvb", f"[kvarena.layouts]\n{line}\nmha = not one\n")

    (broken, shadow) = [offer for offer in survey().offers if offer.distribution == "kvb"]
    assert (broken.fault, shadow.fault) == (fault, "'not one' is no module:attribute")
    assert Catalog.installed().load("layouts", "mha").__module__ == "kvarena.layouts.mha"
    assert run(["plugins", "--kind", "layouts"]) == 0
    assert run(["plugins", "--kind", "layouts", "--check"]) == 2
    assert f"(kvb 1): its entry point is broken: {fault}" in capsys.readouterr().out


@pytest.mark.req("PLG-1")
@pytest.mark.parametrize(
    ("points", "metadata"),
    [
        (b"[kvarena.layouts]\n\xff = k:X\n", None),
        ("[kvarena.layouts]\nx = k:X\n", ""),
        ("[kvarena.a]\nx = k\n", b"\xff"),
    ],
    ids=["points", "empty", "metadata"],
)
def test_a_distribution_that_cannot_be_read_is_named_by_its_folder(
    points: str | bytes,
    metadata: str | bytes | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is one line of ``kvarena plugins``, which fails its check; all others are found."""
    before = survey().offers
    monkeypatch.syspath_prepend(tmp_path)
    info = lay(tmp_path, "kvb", points, metadata=metadata)

    assert set(survey().offers) == set(before)
    assert run(["plugins", "--kind", "tiers"]) == 0
    assert run(["plugins", "--kind", "tiers", "--check"]) == 2
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 2
    assert err[0] == err[1]
    assert err[0].startswith(f"kvarena plugins: {info}: cannot be read: ")


def test_another_distribution_of_our_name_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own entry points are found behind it, it brings none, and one line says where the two lie."""
    before = survey().offers
    monkeypatch.syspath_prepend(tmp_path)
    info = lay(tmp_path, "kvarena", "[kvarena.layouts]\nsneak = kvsneak:X\n")

    found = survey()
    assert set(found.offers) == set(before)
    (line,) = found.faults
    assert line.startswith(f"{info}: it is named 'kvarena' and is another distribution: two have that name; uninstall")
