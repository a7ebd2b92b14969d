"""What a layout declares, looked at before anything is laid out by it: its fields, each time the same."""

from collections.abc import Iterable
from typing import Any

from kvarena.terms.errors import PluginError
from kvarena.terms.fields import Field, Layout
from kvarena.terms.owners import misbehaves

CALLS = 3
"""So often a layout is asked; its answers must be equal."""

_KIND = "layout"


def declared_fields(layout: Layout) -> tuple[Field, ...]:
    """The fields of one entry.

    Raises:
        PluginError: they change from one call to the next, two have one name, one has no bytes or a dtype that is not
            known, or they cannot be told at all; it names the layout and its distribution.
    """
    first = _asked(layout)
    for _ in range(CALLS - 1):
        again = _asked(layout)
        if again != first:
            raise misbehaves("layout.fields_change", _KIND, layout, f"{_change(first, again)} between two calls")
    names: set[str] = set()
    for field in first:
        if field.name in names:
            raise misbehaves("layout.field_twice", _KIND, layout, f"two of its fields have the name {field.name!r}")
        names.add(field.name)
        if not field.bytes:
            finding = f"field {field.name!r} has the shape {field.shape}, which is no bytes; leave the field out"
            raise misbehaves("layout.zero_shape", _KIND, layout, finding)
    return first


def _asked(layout: Layout) -> tuple[Field, ...]:
    """One answer, if it is made of fields."""
    try:
        answer: Any = layout.fields()
        fields = tuple(answer) if isinstance(answer, Iterable) else None
    except PluginError:
        raise
    except Exception as error:  # a stranger's code may raise anything
        finding = f"fields() raised {type(error).__name__}: {error}"
        raise misbehaves("layout.fields_fail", _KIND, layout, finding) from error
    strange = [field for field in fields if not isinstance(field, Field)] if fields is not None else [answer]
    if strange:
        finding = f"fields() returned {strange[0]!r} where fields are due, such as Field('k', 'bfloat16', (8, 128))"
        raise misbehaves("layout.no_fields", _KIND, layout, finding)
    assert fields is not None
    return fields


def _change(first: tuple[Field, ...], again: tuple[Field, ...]) -> str:
    """What is different between two answers, in words."""
    if [field.name for field in first] != [field.name for field in again]:
        return f"its fields changed from {[field.name for field in first]} to {[field.name for field in again]}"
    one, other = next((one, other) for one, other in zip(first, again, strict=True) if one != other)
    if one.shape != other.shape:
        return f"field {one.name!r} changed from {one.shape} to {other.shape}"
    return f"field {one.name!r} changed from {one.dtype} to {other.dtype}"
