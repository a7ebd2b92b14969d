"""Tags: what every row and slot should hold, and whether it does. A tag is a number that is written once.

Tags follow the ids: whoever reads the page of an id, a request that shares it or a cache, finds what was written last
under that id. A positive number is that tag, in the order of the calls; ``BLANK`` is a row that nobody has written
since its page was handed out, which reads as zeros; ``ANY`` may hold anything.
"""

from typing import Any, NamedTuple

import numpy as np

from kvarena.planning.plan import SubPool
from kvarena.storage.storage import Storage
from kvarena.terms.ports import FieldView, IntArray

BLANK, ANY = 0, -1
TAG_BYTES = 8
WORD = 1 << 40
"""Tags from here on are words: the low 32 bits stand all over the row."""
NAN_WORD = 0x7FC17FC1
"""What a slot holds behind its tag: a NaN as float32, and two NaNs as bfloat16."""


class Mismatch(NamedTuple):
    """A row that does not hold what it should: which of the pages compared, and both contents."""

    page: int
    place: int
    expected: int
    found: int


class FarRows:
    """Bytes that the host does not see, a GPU's: what is looked at is fetched, what is written is sent there."""

    def __init__(self, view: Any) -> None:
        self._view = view

    def __getitem__(self, at: Any) -> Any:
        return np.asarray(self._view[at].cpu())

    def __setitem__(self, at: Any, content: Any) -> None:
        self._view[at] = self._view.new_tensor(content)


def rows_of(view: Any) -> Any:
    """A device's view as an array: of the host, where the bytes lie there."""
    try:
        return np.asarray(view)
    except TypeError:  # what torch says of a tensor that the host does not see
        return FarRows(view)


class PoolTags:
    """The bytes of one sub-pool as rows of pages, and what the rows of each id's page should hold.

    ``by_id`` has shape (ids, rows a page); a slot has one row.
    """

    def __init__(self, storage: Storage, pool: SubPool) -> None:
        self.name = pool.name
        self.is_slots = pool.is_slots
        self.rows = pool.page_tokens or 1
        self.unit_bytes = pool.unit_bytes
        self.row_bytes = pool.unit_bytes // self.rows
        self.fresh = BLANK if pool.zero_on_take else ANY
        grid = storage.chain.bands[pool.name].grid
        self.sink_page = grid.sink_page
        self.by_id = np.full((grid.id_count, self.rows), self.fresh, dtype=np.int64)
        self._spread = np.arange(self.row_bytes) % TAG_BYTES
        self._filler = np.resize(np.array([NAN_WORD], dtype="<u4").view(np.uint8), self.row_bytes)
        self._filled_from = min(TAG_BYTES, self.row_bytes) if pool.is_slots else self.row_bytes
        pages = storage.sizing.arena_bytes // pool.unit_bytes
        view = FieldView("uint8", (self.row_bytes,), self.rows, 0, pool.unit_bytes, pages)
        self.bytes: Any = rows_of(storage.device.view(view))
        is_near = isinstance(self.bytes, np.ndarray)
        is_whole = is_near and not pool.unit_bytes % TAG_BYTES and not self.row_bytes % TAG_BYTES
        self._words: Any = self.bytes.view("<i8") if is_whole else None

    def content(self, tags: IntArray) -> Any:
        """The bytes that rows with these tags hold, uint8 (..., row_bytes); zeros for ``BLANK``."""
        raw = np.ascontiguousarray(tags).view(np.uint8).reshape(*tags.shape, TAG_BYTES)
        made = raw[..., : self.row_bytes].copy() if self.row_bytes <= TAG_BYTES else raw.take(self._spread, -1)
        if self._filled_from < self.row_bytes:
            made[..., self._filled_from :] = np.where((tags == BLANK)[..., None], 0, self._filler[self._filled_from :])
        words = tags >= WORD
        if words.any():
            made[words] = raw[words][:, self._spread % 4]
        return made

    def write(self, pages: IntArray, places: IntArray, tags: IntArray) -> None:
        """Write tags into rows: the device's work, when its turn comes."""
        if self._words is not None and len(tags) and tags[0] < WORD:  # words stand in all rows of a write or in none
            self._words[pages, places] = self._in_words(tags)
        else:
            self.bytes[pages, places] = self.content(tags)

    def _in_words(self, tags: IntArray) -> IntArray:
        """``content`` as 64-bit words, (..., words a row), or (..., 1) where they are all alike; for tags alone."""
        if not self.is_slots:
            return tags[..., None]
        made = np.empty((*tags.shape, self.row_bytes // TAG_BYTES), dtype=np.int64)
        made[..., 0] = tags
        made[..., 1:] = np.where(tags == BLANK, 0, NAN_WORD << 32 | NAN_WORD)[..., None]
        return made

    def compare(self, pages: IntArray, expected: IntArray) -> list[Mismatch]:
        """Rows of whole pages that do not hold what was expected, int64 (pages, rows a page)."""
        if self._words is not None:
            is_other = self._words.take(pages, 0) != self._in_words(expected)
            if not np.count_nonzero(is_other):
                return []
        if self._words is None or expected.max(initial=0) >= WORD:  # words are no tags: they stand all over a row
            is_other = self.bytes[pages] != self.content(expected)
        wrong = is_other.any(axis=-1)
        wrong &= expected != ANY
        if not wrong.any():
            return []
        return [
            Mismatch(at, place, int(expected[at, place]), self.tag_at(int(pages[at]), place))
            for at, place in np.argwhere(wrong).tolist()
        ]

    def tag_at(self, page: int, place: int) -> int:
        """The tag that a row's first bytes spell."""
        raw = np.zeros(TAG_BYTES, dtype=np.uint8)
        size = min(TAG_BYTES, self.row_bytes)
        raw[:size] = self.bytes[page, place, :size]
        return int(raw.view(np.int64)[0])

    def values(self, page: int) -> Any:
        """A page as bfloat16 values: float32 of shape (rows, values a row)."""
        raw = np.ascontiguousarray(self.bytes[page, :, : self.row_bytes // 2 * 2])
        wide = raw.view("<u2").astype("<u4") << 16
        return wide.view("<f4")

    def born(self, ids: IntArray) -> None:
        """These ids have new pages: they hold what pages do when they are handed out."""
        self.by_id[ids] = self.fresh


class Tags:
    """Tags of every sub-pool with bytes. ``on`` is false for a device without bytes: nothing is kept or checked."""

    def __init__(self, storage: Storage) -> None:
        self.on = storage.device.holds_bytes
        self.serial = 0
        backed = [pool for pool in storage.plan.sub_pools if pool.unit_bytes] if self.on else []
        self.pools = {pool.name: PoolTags(storage, pool) for pool in backed}
        self.token_pools = [tags for tags in self.pools.values() if not tags.is_slots]
        self.slots = next((tags for tags in self.pools.values() if tags.is_slots), None)

    def fresh(self, count: int) -> IntArray:
        """So many tags that were never written."""
        first = self.serial + 1
        self.serial += count
        return np.arange(first, first + count, dtype=np.int64)

    def born(self, ids: IntArray) -> None:
        """``PoolTags.born`` in every token sub-pool."""
        for pool in self.token_pools:
            pool.by_id[ids] = pool.fresh


def word_tag(word: int) -> int:
    """The tag of a row that holds this 32-bit word all over."""
    return WORD | word & 0xFFFFFFFF


def value_tag(value: float) -> int:
    """The tag of a row that holds this bfloat16 value all over; its lower bits are cut off."""
    high = int(np.array([value], dtype="<f4").view("<u4")[0]) >> 16
    return word_tag(high << 16 | high)


def spelled(tag: int) -> str:
    """A tag in words."""
    if tag >= WORD:
        return f"words 0x{tag & 0xFFFFFFFF:08X}"
    return {BLANK: "zeros", ANY: "anything"}.get(tag, f"tag {tag}")
