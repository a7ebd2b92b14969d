"""SGLang's GPU kernels as C loops behind the same Python signatures, one cheap call where a GPU has one launch.

``Spent`` holds the nanoseconds inside zeroing and copying, which are taken out of the figures on both sides.
"""

import ctypes
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import attrs
import torch

SOURCE = Path(__file__).with_name("kernels.c")
ADDRESSES_AND_NUMBERS = {
    "extend_ids": (5, 2),
    "decode_ids": (4, 2),
    "bind_range": (4, 2),
    "bind_pages": (4, 1),
    "unbind_pages": (4, 1),
    "translate_wide": (3, 4),
    "translate_narrow": (3, 4),
    "clear_pages": (2, 2),
    "move_pages": (3, 4),
}
"""How many addresses each C function takes, and how many numbers after them."""


@attrs.define
class Spent:
    """What went into bytes since ``clear``: not bookkeeping, so reported apart."""

    zero_ns: int = 0
    copy_ns: int = 0
    copied_bytes: int = 0

    def clear(self) -> None:
        """Start counting anew."""
        self.zero_ns = self.copy_ns = self.copied_bytes = 0


def compiled() -> ctypes.CDLL:
    """The C loops, compiled with gcc into a folder that is gone at once: the loaded library stays.

    Raises:
        FileNotFoundError: there is no gcc.
    """
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "kernels.so"
        subprocess.run(["gcc", "-O3", "-shared", "-fPIC", "-o", str(library), str(SOURCE)], check=True)
        loaded = ctypes.CDLL(str(library))
    for name, (addresses, numbers) in ADDRESSES_AND_NUMBERS.items():
        function = getattr(loaded, name)
        function.restype = None
        function.argtypes = [ctypes.c_void_p] * addresses + [ctypes.c_int64] * numbers
    return loaded


class Kernels:
    """The eight kernels, each with the signature under which SGLang calls it."""

    def __init__(self) -> None:
        self.c = compiled()
        self.spent = Spent()

    def alloc_extend(self, *arguments: Any) -> None:
        """Token ids of growing requests: lengths before and after, last ids, fresh pages, out, a bound, page size."""
        before, after, last, fresh, out, _, page_tokens = arguments
        addresses = before.data_ptr(), after.data_ptr(), last.data_ptr(), fresh.data_ptr(), out.data_ptr()
        self.c.extend_ids(*addresses, before.numel(), page_tokens)

    def alloc_decode(self, *arguments: Any) -> None:
        """One more token id each: lengths after, last ids, fresh pages, out, a bound, page size."""
        after, last, fresh, out, _, page_tokens = arguments
        addresses = after.data_ptr(), last.data_ptr(), fresh.data_ptr(), out.data_ptr()
        self.c.decode_ids(*addresses, after.numel(), page_tokens)

    def bind_range(self, virtuals: Any, to_physical: Any, to_virtual: Any, first: int) -> Any:
        """Bind to ascending pages from ``first``; returns them."""
        count = virtuals.numel()
        out = torch.empty(count, dtype=torch.int64)
        addresses = virtuals.data_ptr(), to_physical.data_ptr(), to_virtual.data_ptr(), out.data_ptr()
        self.c.bind_range(*addresses, count, first)
        return out

    def bind(self, virtuals: Any, physicals: Any, to_physical: Any, to_virtual: Any) -> None:
        """Bind to the pages given."""
        virtuals, physicals = virtuals.to(torch.int64).contiguous(), physicals.to(torch.int64).contiguous()
        addresses = virtuals.data_ptr(), physicals.data_ptr(), to_physical.data_ptr(), to_virtual.data_ptr()
        self.c.bind_pages(*addresses, virtuals.numel())

    def unbind(self, virtuals: Any, to_physical: Any, to_virtual: Any) -> Any:
        """Unbind; returns the pages that are free now."""
        virtuals = virtuals.to(torch.int64).contiguous()
        count = virtuals.numel()
        out = torch.empty(count, dtype=torch.int64)
        addresses = virtuals.data_ptr(), to_physical.data_ptr(), to_virtual.data_ptr(), out.data_ptr()
        self.c.unbind_pages(*addresses, count)
        return out

    def translate(
        self, *, loc: Any, v2p: Any, page_size: int, out: Any = None, out_width: int | None = None, **dcp: int
    ) -> Any:
        """Virtual token ids to physical ones; 0 where there is none."""
        out = torch.empty(loc.shape, dtype=torch.int64) if out is None else out
        count = loc.numel()
        translate = self.c.translate_wide if loc.dtype == torch.int64 else self.c.translate_narrow
        width = count if out_width is None else out_width
        ids = loc.contiguous()  # kept until the call is over: its address is all that the loop sees
        translate(ids.data_ptr(), v2p.data_ptr(), out.data_ptr(), count, width, v2p.numel(), page_size)
        return out

    def zero_pages(self, arena: Any, pages: Any, page_count: int, page_bytes: int) -> None:
        """Clear whole pages."""
        began = time.perf_counter_ns()
        pages = pages.contiguous()
        self.c.clear_pages(arena.data_ptr(), pages.data_ptr(), pages.numel(), page_bytes)
        self.spent.zero_ns += time.perf_counter_ns() - began

    def copy_pages(self, arena: Any, targets: Any, sources: Any, page_count: int, page_bytes: int) -> None:
        """Copy whole pages."""
        began, count = time.perf_counter_ns(), targets.numel()
        addresses = arena.data_ptr(), targets.data_ptr(), sources.data_ptr()
        self.c.move_pages(*addresses, count, targets.stride(0), sources.stride(0), page_bytes)
        self.spent.copy_ns += time.perf_counter_ns() - began
        self.spent.copied_bytes += count * page_bytes
