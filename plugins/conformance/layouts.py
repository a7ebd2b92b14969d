"""What a layout promises: fields that stay, bytes that are its own, and a codec that gives back what it was given."""

from typing import Any, ClassVar

import numpy as np
import pytest

from kvarena.planning.plan import Plan, plan_storage
from kvarena.plugins.conformance.arena import REASON, WITHOUT_TORCH, open_cpu, touched_elsewhere
from kvarena.plugins.conformance.base import ValueConformance
from kvarena.plugins.conformance.codecs import CodecPromises
from kvarena.plugins.conformance.swarm import MINE, Slice, broken_in
from kvarena.plugins.stress.swarm.lent import always
from kvarena.plugins.stress.swarm.world import Wanted
from kvarena.terms.fields import DTYPE_BYTES, Field, Layout
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Full, State, Window
from kvarena.terms.units import format_bytes

PAGE_SIZES = (1, 2, 3, 16, 64)
UNIT_BYTES_MAX = 1 << 40
"""A page that no arena of today can hold even one of."""
ENTRY_BYTES_MAX = 1 << 20
"""So small are the entries of which an arena is really made here."""
ASKED = 6


class FieldPromises(ValueConformance):
    """What a layout says of itself."""

    word: ClassVar[str] = "layout"

    @pytest.fixture
    def layout(self) -> Layout:
        """The layout to test."""
        return self._missing("layout", "MyLayout(heads=2, head_dim=16)")

    @pytest.fixture
    def value(self, layout: Layout) -> Layout:
        """The same, for what all values promise."""
        return layout

    def test_declares_fields(self, layout: Layout) -> None:
        """``fields()`` gives a tuple of ``kvarena.Field``, one at least, each of a dtype that is known."""
        fields = layout.fields()
        if not isinstance(fields, tuple) or not fields:
            self._fail(layout, f"its fields are {fields!r}; they must be a tuple of at least one kvarena.Field")
        for field in fields:
            if not isinstance(field, Field):
                self._fail(layout, f"its field {field!r} is no kvarena.Field")
            if field.dtype not in DTYPE_BYTES:
                self._fail(layout, f"field {field.name!r} has the dtype {field.dtype!r}, which is none of those known")

    def test_asks_for_the_same_fields_every_time(self, layout: Layout) -> None:
        """However often it is asked, and whatever is planned with it meanwhile, its fields are the same."""
        first = tuple(layout.fields())
        for _ in range(ASKED):
            again = tuple(layout.fields())
            if again == first:
                continue
            if len(again) != len(first):
                self._fail(layout, f"it has {len(first)} fields, and {len(again)} at another call")
            old, new = next(pair for pair in zip(first, again, strict=True) if pair[0] != pair[1])
            if (old.name, old.dtype) == (new.name, new.dtype):
                self._fail(layout, f"field {old.name!r} changed from {old.shape} to {new.shape} between two calls")
            self._fail(layout, f"a field changed from {old} to {new} between two calls")

    def test_gives_each_field_a_name_of_its_own(self, layout: Layout) -> None:
        """A field's name is a word, and no two fields share one."""
        names = [field.name for field in layout.fields()]
        for name in names:
            if not isinstance(name, str) or not name:
                self._fail(layout, f"a field has the name {name!r}; it must be a text")
            if names.count(name) > 1:
                self._fail(layout, f"{names.count(name)} fields have the name {name!r}; give each its own")

    def test_has_no_field_without_bytes(self, layout: Layout) -> None:
        """A field's shape is made of whole numbers from 1 on; an empty shape is one item."""
        for field in layout.fields():
            if any(not isinstance(size, int) or isinstance(size, bool) or size < 1 for size in field.shape):
                self._fail(layout, f"field {field.name!r} has the shape {field.shape}; leave out what has no bytes")

    def test_says_plainly_whether_it_is_zeroed(self, layout: Layout) -> None:
        """``zero_on_take``, where it has one, is True or False."""
        said = getattr(layout, "zero_on_take", True)
        if not isinstance(said, bool):
            self._fail(layout, f"its zero_on_take is {said!r}; it must be True or False")


class LayoutConformance(CodecPromises, FieldPromises):
    """A layout: give the fixture ``layout``, a small one. It runs without torch; what needs torch says so."""

    powers: ClassVar = {"codec": "a runner's keys and values can be encoded into its fields, and decoded"}

    def test_plans_in_pages_of_any_size(self, layout: Layout) -> None:
        """A page of so many tokens holds so many entries, and can be held by an arena."""
        entry = sum(field.bytes for field in layout.fields())
        for tokens in PAGE_SIZES:
            unit = _plan(layout, tokens)["full"].unit_bytes
            if unit < entry * tokens:
                self._fail(layout, f"a page of {tokens} tokens has {unit} bytes, and {tokens} entries of {entry}")
            if unit > UNIT_BYTES_MAX:
                self._fail(layout, f"a page of {tokens} tokens has {format_bytes(unit)}; no arena can hold one")

    def test_what_is_written_is_read_back_and_nothing_else_changes(self, layout: Layout) -> None:
        """What is written into a row through a view of the cpu backend is read there again; no other row changes."""
        if WITHOUT_TORCH:
            pytest.skip(REASON)
        _check_small(layout)
        storage = open_cpu(_layers(layout))
        try:
            wrong = touched_elsewhere(storage, np.random.default_rng(1))
        finally:
            storage.release()
        if wrong:
            self._fail(layout, wrong)

    def test_holds_in_the_stress_harness(self, layout: Layout) -> None:
        """Random requests over pages and slots of it keep every promise of the stress harness."""
        _check_small(layout)
        mine = {"layout": MINE}
        kinds: tuple[dict[str, Any], ...] = (
            {"lifetime": "state"},
            {"lifetime": "window", "window": 4},
            {"lifetime": "full"},
        )
        chains = (kinds, kinds[1:], kinds[2:])
        wanted = tuple(
            Wanted(layers=tuple({"index": at, **mine, **kind} for at, kind in enumerate(chain))) for chain in chains
        )
        found = broken_in(Slice(makers={("layouts", MINE): always(layout)}, wanted=wanted, seeds=len(wanted)))
        if found:
            self._fail(layout, found)


def _check_small(layout: Layout) -> None:
    """The arena is really there."""
    entry = sum(field.bytes for field in layout.fields())
    if entry > ENTRY_BYTES_MAX:
        pytest.skip(f"an entry has {format_bytes(entry)}; give a layout of at most {format_bytes(ENTRY_BYTES_MAX)}")


def _layers(layout: Layout) -> list[Layer]:
    """Two layers of whole sequences, and two windows."""
    parts = (Part(layout, Full()), Part(layout, Full()), Part(layout, Window(4)), Part(layout, State(), role="state"))
    return [Layer(index, (part,)) for index, part in enumerate(parts)]


def _plan(layout: Layout, page_tokens: int) -> Plan:
    return plan_storage(_layers(layout), page_tokens=page_tokens)
