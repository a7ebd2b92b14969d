"""Units as runs of the widest words that they are made of."""

import torch

WORDS = ((torch.int64, 8), (torch.int32, 4), (torch.int16, 2))


def words_of(memory: torch.Tensor, unit_bytes: int) -> tuple[torch.Tensor, int]:
    """Bytes as words whose size divides a unit, and how many words a unit has. The bytes begin on a word."""
    for dtype, size in WORDS:
        if unit_bytes % size == 0:
            return memory[: len(memory) // size * size].view(dtype), unit_bytes // size
    return memory, unit_bytes
