"""Where a float that holds nothing is put when it takes its first page."""

import attrs


@attrs.frozen
class Middle:
    """Half-way: room to grow on both sides."""

    name = "middle"

    def start(self, lowest: int, highest: int) -> int:
        return (lowest + highest) // 2
