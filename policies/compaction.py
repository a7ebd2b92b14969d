"""How many pages an end may move to close its holes when nobody is short of memory."""

import attrs


@attrs.frozen
class Lazy:
    """A few moves a pass, so that a pass costs little and holes close over many."""

    max_moves: int = attrs.field(default=64, validator=[attrs.validators.instance_of(int), attrs.validators.ge(1)])
    name = "lazy"

    def moves(self, live: int, holes: int) -> int:
        return min(holes, self.max_moves)


@attrs.frozen
class Eager:
    """All holes of the band, every pass."""

    name = "eager"

    def moves(self, live: int, holes: int) -> int:
        return holes


@attrs.frozen
class Never:
    """Nothing moves unless a take needs it."""

    name = "none"

    def moves(self, live: int, holes: int) -> int:
        return 0
