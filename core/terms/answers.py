"""Answers that are values: what was asked, what there is, and what would help. Nothing has changed."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import attrs


@attrs.frozen
class Shortage:
    """One sub-pool of a refused demand, in its own units (pages, or slots for a state)."""

    sub_pool: str
    asked: int
    live: int
    holes: int
    unit_bytes: int

    def __str__(self) -> str:
        return f"{self.sub_pool}: asked {self.asked}, live {self.live}, holes {self.holes}"


@attrs.frozen
class Refused:
    """A take that does not fit. Falsy, so ``if not storage.step(...)`` reads as it should."""

    asked: Mapping[str, int]
    shortages: tuple[Shortage, ...]
    free_bytes: int
    reason: str

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        sums = "; ".join([*map(str, self.shortages), f"{self.free_bytes:,} bytes free"])
        return f"{self.reason} ({sums})"


class Admit(NamedTuple):
    """The request may start, charged with ``charge`` units per sub-pool in chain order.

    ``evicts``: only once the cache has given entries back, which ``Admission.make_room`` sees to. ``chunk_tokens``: its
    prompt must be forwarded in chunks of at most so many tokens, fewer than the configured limit; None for that one.
    """

    charge: tuple[int, ...]
    evicts: bool = False
    chunk_tokens: int | None = None


def _none() -> int:
    return 0


@attrs.frozen
class Wait:
    """The request fits an empty arena but not now, and something will give memory back: ``until``, for people.

    ``charge`` was asked for beside ``promised``: units per sub-pool, in chain order like ``names``; answers with the
    same sum are equal. ``longest`` finds ``largest_prompt`` among frozen values, when somebody asks for it.
    """

    names: tuple[str, ...]
    charge: tuple[int, ...]
    promised: tuple[int, ...]
    until: tuple[str, ...] = attrs.field(default=(), eq=False)
    longest: Callable[[], int] = attrs.field(default=_none, eq=False, repr=False)

    @property
    def largest_prompt(self) -> int:
        """The longest prompt, with the output asked for, that would have fit when this was answered; 0 if none."""
        return self.longest()

    @property
    def reason(self) -> str:
        """The sum, for people."""
        asked, held = named(self.names, self.charge), named(self.names, self.promised)
        reason = f"asked {asked} (units per sub-pool); held back for running requests: {held}"
        return f"{reason}; waits for {', '.join(self.until)}" if self.until else reason

    def __str__(self) -> str:
        longest = self.largest_prompt
        return f"{self.reason}; " + (
            f"a prompt of at most {longest:,} tokens would fit now" if longest else "no prompt would fit now"
        )

    def __bool__(self) -> bool:
        return False


def named(names: Sequence[str], units: Sequence[int]) -> str:
    """Units beside the names of their sub-pools."""
    return ", ".join(f"{count} {name}" for name, count in zip(names, units, strict=True))


@attrs.frozen
class Never:
    """The request fits not even an empty arena; ``largest_prompt`` is the longest that would, with its output."""

    reason: str
    largest_prompt: int

    def __str__(self) -> str:
        if not self.largest_prompt:
            return f"{self.reason}; no prompt would fit with this output: ask for fewer tokens"
        return f"{self.reason}; a prompt of at most {self.largest_prompt:,} tokens would fit with this output"

    def __bool__(self) -> bool:
        return False
