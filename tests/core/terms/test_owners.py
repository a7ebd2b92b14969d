"""Whose a value is: the distribution that brought its class, read from metadata when a message needs it."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import importlib_metadata
import numpy as np
import pytest

from kvarena.layouts.mha import Mha
from kvarena.terms.errors import PluginError
from kvarena.terms.lifetimes import Full, Window
from kvarena.terms.owners import described, misbehaves, owner_of


class Nameless:
    """A value that cannot even say its name."""

    @property
    def name(self) -> str:
        """Fails."""
        raise RuntimeError("no")


def installed(folder: Path, name: str, version: str, points: str = "", files: str = "") -> None:
    """A distribution's metadata."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(points, encoding="utf-8")
    (info / "RECORD").write_text(files, encoding="utf-8")


def module_of(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module with a class and a function of its own."""
    module = ModuleType(name)
    exec("class Thing:\n    name = 'thing'\ndef make():\n    return Thing()\n", vars(module))
    monkeypatch.setitem(sys.modules, name, module)
    return module


@pytest.mark.parametrize("value", [Full(), Window, Mha(kv_heads=1, head_dim=2), owner_of])
def test_what_is_built_in_is_kvarenas(value: Any) -> None:
    """A value, a class or a function."""
    assert owner_of(value).startswith("kvarena 0.")


def test_an_entry_point_that_names_it_goes_before_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then one of its module, then one of its package; an entry point of another program says nothing."""
    monkeypatch.syspath_prepend(tmp_path)
    far, near = module_of("strange_h3.far", monkeypatch), module_of("strange_h3.near", monkeypatch)
    installed(tmp_path, "kvarena-near", "1", "[kvarena.layouts]\nx = strange_h3.near:Other\n")
    installed(tmp_path, "kvarena-exact", "2", "[kvarena.layouts]\ny = strange_h3.near:Thing [extra]\n")
    installed(tmp_path, "console", "3", "[console_scripts]\nz = strange_h3.far:Thing\n")

    assert owner_of(near.Thing()) == "kvarena-exact 2"
    assert owner_of(near.make) in ("kvarena-near 1", "kvarena-exact 2")
    assert owner_of(far.Thing) in ("kvarena-near 1", "kvarena-exact 2")


def test_without_an_entry_point_it_is_who_installed_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its list of files; nobody, where there is none."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "helpers_h3.py").write_text("", encoding="utf-8")
    installed(tmp_path, "helpers", "4", files="helpers_h3.py,,\n")

    assert owner_of(module_of("helpers_h3", monkeypatch).Thing()) == "helpers 4"
    assert owner_of(np.array([1])).startswith("numpy ")
    assert owner_of(3) == owner_of(print) == ""


def test_a_message_names_the_value_and_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its class where no distribution is known, or where it cannot say its name."""
    thing = module_of("nobodys_h3", monkeypatch).Thing()

    assert described("lifetime", Window(8)).startswith("lifetime 'window-8' (kvarena 0.")
    assert described("layout", thing) == "layout 'thing' (nobodys_h3.Thing)"
    assert described("policy", Nameless()).startswith("policy 'Nameless' (")
    error = misbehaves("layout.zero_shape", "layout", thing, "field 'k' is empty")
    assert isinstance(error, PluginError)
    assert str(error) == "layout 'thing' (nobodys_h3.Thing): field 'k' is empty (layout.zero_shape)"


def test_who_installed_what_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes seconds, and a run of checks may tell many failures."""
    reads = []
    monkeypatch.syspath_prepend("no_such_folder_h3")  # a path of its own: nothing was read for it
    find = importlib_metadata.packages_distributions
    monkeypatch.setattr(importlib_metadata, "packages_distributions", lambda: reads.append(1) or find())
    owners = {owner_of(np.array([number])) for number in range(9)}

    assert len(owners) == len(reads) == 1
