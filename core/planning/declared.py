"""What a layout declares, looked at before anything is laid out by it: its fields, each time the same."""

from typing import Any

from kvarena.terms.fields import Field, Layout
from kvarena.terms.owners import MISHAPS, misbehaves, raising

CALLS = 3
"""So often a layout is asked; its answers must be equal."""

_KIND = "layout"


def declared_fields(layout: Layout) -> tuple[Field, ...]:
    """The fields of one entry.

    Raises:
        PluginError: there are none, they change from one call to the next, two have one name, one has no bytes or a
            dtype that is not known, or they cannot be told at all; or the layout has no name or no hash. It names the
            layout and its distribution.
    """
    _check_value(layout)
    first = _asked(layout)
    if not first:
        finding = "fields() is empty, and an entry has bytes; leave a part that stores nothing out of its layer"
        raise misbehaves("layout.no_fields", _KIND, layout, finding)
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


def _check_value(layout: Layout) -> None:
    """It has a name of one line, and can be hashed."""
    try:
        name: Any = layout.name
        hash(layout)
    except MISHAPS as error:
        finding = f"{raising('its name or its hash', error)}; make it a frozen value with a name"
        raise misbehaves("layout.incomplete", _KIND, layout, finding) from error
    if not isinstance(name, str) or not name.isprintable() or not name.strip():
        raise misbehaves("layout.incomplete", _KIND, layout, f"its name is {name!r}; it must be a text of one line")


def _asked(layout: Layout) -> tuple[Field, ...]:
    """One answer, if it is made of fields."""
    try:
        answer: Any = layout.fields()
    except MISHAPS as error:
        raise misbehaves("layout.fields_fail", _KIND, layout, raising("fields()", error)) from error
    if not isinstance(answer, tuple | list):
        finding = f"fields() returned {answer!r}; it must be a tuple of fields, such as (Field('k', 'bfloat16', (8,)),)"
        raise misbehaves("layout.no_fields", _KIND, layout, finding)
    strange = [field for field in answer if not isinstance(field, Field)]
    if strange:
        finding = f"fields() returned {strange[0]!r} where fields are due, such as Field('k', 'bfloat16', (8, 128))"
        raise misbehaves("layout.no_fields", _KIND, layout, finding)
    return tuple(answer)


def _change(first: tuple[Field, ...], again: tuple[Field, ...]) -> str:
    """What is different between two answers, in words."""
    if [field.name for field in first] != [field.name for field in again]:
        return f"its fields changed from {[field.name for field in first]} to {[field.name for field in again]}"
    one, other = next((one, other) for one, other in zip(first, again, strict=True) if one != other)
    if one.shape != other.shape:
        return f"field {one.name!r} changed from {one.shape} to {other.shape}"
    return f"field {one.name!r} changed from {one.dtype} to {other.dtype}"
