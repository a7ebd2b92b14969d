"""Layouts that break one promise each."""

import itertools
from collections.abc import Sequence
from typing import Any

import attrs
import torch
from sabotage import saboteur

from kvarena.plugins.conformance import LayoutConformance
from kvarena.terms.fields import Field

NONE = ("codec",)
K, V = Field("k", "float16", (2, 4)), Field("v", "float32", (3,))


@attrs.frozen
class Rows:
    """Nothing is wrong with this one."""

    wide: int = 1
    name = "rows"

    def fields(self) -> tuple[Field, ...]:
        return (K, V)


@attrs.define(unsafe_hash=True)
class CanBeSet:
    """Whoever holds it may change it."""

    wide: int = 1
    name = "can-be-set"

    def fields(self) -> tuple[Field, ...]:
        return (K, V)


@attrs.frozen(eq=False)
class EqualToNothing:
    """A copy of it is another."""

    wide: int = 1
    name = "equal-to-nothing"

    def fields(self) -> tuple[Field, ...]:
        return (K, V)


@attrs.frozen
class TwoWords(Rows):
    """Its name is no word."""

    name = "two words"


@attrs.frozen
class ListOfFields(Rows):
    """A list can be changed by whoever gets it."""

    def fields(self) -> Any:
        return [K, V]


@attrs.frozen
class Changes(Rows):
    """Another shape now and then."""

    calls: Any = attrs.field(factory=itertools.count, eq=False, repr=False)

    def fields(self) -> tuple[Field, ...]:
        return (K, Field("v", "float32", (3 + next(self.calls) % 2,)))


@attrs.frozen
class RepeatsAName(Rows):
    """Two fields of one name."""

    def fields(self) -> tuple[Field, ...]:
        return (K, Field("k", "float32", (3,)))


@attrs.frozen
class NoBytes(Rows):
    """A field without bytes."""

    def fields(self) -> tuple[Field, ...]:
        return (K, Field("v", "float32", (0, 3)))


@attrs.frozen
class MaybeZeroed(Rows):
    """A word that means no, and counts as yes."""

    zero_on_take = "no"


@attrs.frozen
class Endless(Rows):
    """An entry that no memory holds."""

    def fields(self) -> tuple[Field, ...]:
        return (K, Field("v", "float32", (1 << 46,)))


class Understated(Field):
    """A field that says that it has less bytes than it has."""

    @property
    def bytes(self) -> int:
        """One item."""
        return self.item_bytes


@attrs.frozen
class Overlaps(Rows):
    """What is written into one field goes into the next."""

    def fields(self) -> tuple[Field, ...]:
        return (Understated("k", "float32", (4,)), V)


@attrs.frozen
class ChangesLate(Rows):
    """Other fields once it was asked often."""

    calls: Any = attrs.field(factory=itertools.count, eq=False, repr=False)

    def fields(self) -> tuple[Field, ...]:
        return (K, V) if next(self.calls) < 60 else (K, Field("v", "float64", (3,)))


class Halves:
    """Nothing is wrong with this codec: keys as they are, values as halves."""

    def encode(self, k: Any, v: Any) -> Sequence[Any]:
        return (k.float(), v.half())

    def decode(self, fields: Sequence[Any]) -> tuple[Any, Any]:
        return fields[0].float().clone(), fields[1].float()


@attrs.frozen
class Coded:
    """Keys, values and a number beside them."""

    codec: Any = attrs.field(factory=Halves, eq=False)
    name = "coded"

    def fields(self) -> tuple[Field, ...]:
        return (Field("k", "float32", (2, 4)), Field("v", "float16", (2, 4)))


@attrs.frozen
class Scaled(Coded):
    """With a scale for a row."""

    def fields(self) -> tuple[Field, ...]:
        return (*super().fields(), Field("scale", "float32", (1, 1)))


class NothingByNothing(Halves):
    """A row that was not written has no scale."""

    def encode(self, k: Any, v: Any) -> Sequence[Any]:
        return (k.float(), v.half(), torch.ones(*k.shape[:-2], 1, 1))

    def decode(self, fields: Sequence[Any]) -> tuple[Any, Any]:
        return fields[0] / fields[2], fields[1].float()


class WrongDtype(Halves):
    """Values as they are, where halves are declared."""

    def encode(self, k: Any, v: Any) -> Sequence[Any]:
        return (k.float(), v.float())


class Louder(Halves):
    """What comes back is more than what went in."""

    def decode(self, fields: Sequence[Any]) -> tuple[Any, Any]:
        return 1.5 * fields[0].float(), fields[1].float()


class OneScaleForAll(NothingByNothing):
    """A row's codes hang on the largest of all rows."""

    def encode(self, k: Any, v: Any) -> Sequence[Any]:
        largest = k.abs().max()
        return (k.float() / largest, v.half(), largest.expand(*k.shape[:-2], 1, 1).clone())

    def decode(self, fields: Sequence[Any]) -> tuple[Any, Any]:
        return fields[0] * fields[2], fields[1].float()


class Learns(OneScaleForAll):
    """It encodes with the scale of what it saw before."""

    def __init__(self) -> None:
        self.seen = 1.0

    def encode(self, k: Any, v: Any) -> Sequence[Any]:
        scale, whole = self.seen, k.dim() == 3 and len(k) > 1
        self.seen = float(k.abs().max()) if whole else self.seen
        scale = scale if whole else 1.0
        return (k.float() / scale, v.half(), torch.full((*k.shape[:-2], 1, 1), scale))


class WritesInPlace(Halves):
    """It clips what it is given."""

    def encode(self, k: Any, v: Any) -> Sequence[Any]:
        return (k.clamp_(-1, 1).float().clone(), v.half())


TestCanBeSet = saboteur(LayoutConformance, "test_is_frozen", NONE, layout=CanBeSet)
TestEqualToNothing = saboteur(LayoutConformance, "test_is_equal_by_value", NONE, layout=EqualToNothing)
TestTwoWords = saboteur(LayoutConformance, "test_has_a_name_that_stays", NONE, layout=TwoWords)
TestListOfFields = saboteur(LayoutConformance, "test_declares_fields", NONE, layout=ListOfFields)
TestChanges = saboteur(LayoutConformance, "test_asks_for_the_same_fields_every_time", NONE, layout=Changes)
TestRepeatsAName = saboteur(LayoutConformance, "test_gives_each_field_a_name_of_its_own", NONE, layout=RepeatsAName)
TestNoBytes = saboteur(LayoutConformance, "test_has_no_field_without_bytes", NONE, layout=NoBytes)
TestMaybeZeroed = saboteur(LayoutConformance, "test_says_plainly_whether_it_is_zeroed", NONE, layout=MaybeZeroed)
TestEndless = saboteur(LayoutConformance, "test_plans_in_pages_of_any_size", NONE, layout=Endless)
TestOverlaps = saboteur(
    LayoutConformance, "test_what_is_written_is_read_back_and_nothing_else_changes", NONE, layout=Overlaps
)
TestChangesLate = saboteur(LayoutConformance, "test_holds_in_the_stress_harness", NONE, layout=ChangesLate)
TestNoScale = saboteur(LayoutConformance, "test_zeros_decode_to_numbers", layout=lambda: Scaled(NothingByNothing()))
TestWrongDtype = saboteur(
    LayoutConformance, "test_encodes_into_the_declared_fields", layout=lambda: Coded(WrongDtype())
)
TestLouder = saboteur(LayoutConformance, "test_decodes_what_it_encoded", layout=lambda: Coded(Louder()))
TestOneScaleForAll = saboteur(
    LayoutConformance, "test_encodes_each_row_by_itself", layout=lambda: Scaled(OneScaleForAll())
)
TestLearns = saboteur(LayoutConformance, "test_encodes_alike_every_time", layout=lambda: Scaled(Learns()))
TestWritesInPlace = saboteur(LayoutConformance, "test_leaves_what_it_is_given", layout=lambda: Coded(WritesInPlace()))
