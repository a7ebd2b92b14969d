"""The face: every name is there, comes from its home, and costs nothing until it is asked for."""

import subprocess
import sys

import pytest

import kvarena


def test_every_name_of_the_face_is_found():
    """``kvarena.__all__`` is the stable interface; each name is an object of a module below."""
    for name in kvarena.__all__:
        assert getattr(kvarena, name).__module__.startswith("kvarena.") or name == "hookimpl"
    assert set(dir(kvarena)) == set(kvarena.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error():
    """A misspelt name is told like any module's."""
    with pytest.raises(AttributeError, match="no attribute 'Storages'"):
        _ = kvarena.Storages


def test_importing_the_face_imports_no_room():
    """The rooms are loaded by the names that need them."""
    code = "import sys, kvarena; print([name for name in sys.modules if name.startswith('kvarena.')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
