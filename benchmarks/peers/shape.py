"""The arena that every row is measured on: one layer of each kind, the sizes of a small hybrid model."""

import attrs

PAGE_SIZES = (1, 16, 64)
WINDOW = 128
TOKEN_BYTES = 512
"""One head of 128, keys and values in two bytes each: a token of the full layer, and one of a window layer."""

CONV_SHAPE, RECURRENT_SHAPE = (512, 3), (4, 64, 128)
STATE_BYTES = 512 * 3 * 2 + 4 * 64 * 128 * 4


@attrs.frozen
class Shape:
    """Bytes for so many tokens of the full layer, of the window layer, and so many state slots."""

    page_tokens: int
    full_tokens: int = 1 << 20
    window_tokens: int = 1 << 18
    slots: int = 1024
    running: int = 512

    @property
    def arena_bytes(self) -> int:
        """All of it together: any kind may take any of these bytes."""
        return (self.full_tokens + self.window_tokens) * TOKEN_BYTES + self.slots * STATE_BYTES


def tight(page_tokens: int) -> Shape:
    """An eighth of the full tokens, a quarter of the rest: what the rows about a full arena fill."""
    return Shape(page_tokens, full_tokens=1 << 17, window_tokens=1 << 16, slots=256, running=1024)
