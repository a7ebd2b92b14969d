"""What a maker takes is read once, whether it is an attrs class, a plain one or a function."""

from typing import Any

import attrs
import pytest

from kvarena.assembly.catalog import Catalog
from kvarena.assembly.loader import default_settings
from kvarena.assembly.settings import settings_of
from kvarena.terms.errors import PluginError


@attrs.frozen
class Made:
    """Each sort of default."""

    given: int
    plain: str = "x"
    anew: list[int] = attrs.field(factory=list)
    own: int = attrs.field(default=attrs.Factory(lambda self: self.given, takes_self=True))
    inner: int = attrs.field(init=False, default=3)


class Plain:
    """A class with an ``__init__`` of its own."""

    def __init__(self, given: int, plain: str = "x") -> None:
        self.given = given


def any_of(given: int, *rest: int, plain: str = "x", **more: Any) -> None:
    """A function that takes what it is given."""


@pytest.mark.parametrize(
    ("maker", "names", "takes_any"),
    [
        (Made, ["given", "plain", "anew", "own"], False),
        (Plain, ["given", "plain"], False),
        (any_of, ["given", "plain"], True),
    ],
)
def test_a_maker_tells_its_settings(maker: Any, names: list[str], takes_any: bool) -> None:
    """In its order, with those that must be given, and whether others may be."""
    known, others = settings_of(maker)

    assert (list(known), others) == (names, takes_any)
    assert [name for name, setting in known.items() if setting.needed] == ["given"]
    assert settings_of(maker).takes("plain")
    assert settings_of(maker).takes("strange") is takes_any


def test_a_default_that_needs_the_object_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is made anew is; what cannot be called tells none, and is named where it is asked."""
    catalog, makers = Catalog([]), {"made": Made, "number": 7}
    monkeypatch.setattr(catalog, "load", lambda kind, name: makers[name])

    assert default_settings(catalog, "policies", "made") == {"plain": "x", "anew": []}
    assert default_settings(catalog, "policies", "number") == {}
    with pytest.raises(PluginError, match=r"^plugin 'int' \(builtins\.int\): it does not tell which settings it takes"):
        settings_of(7)
