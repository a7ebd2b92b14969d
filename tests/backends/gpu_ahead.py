"""A program that compiles every GPU kernel ahead of time, for both makers' devices; no GPU is needed.

Each line it prints is a kernel, the type of its words, a target, the kind of binary, its size, and what its code shows.
"""

import itertools

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvarena.backends import gpu_triton

TARGETS = {"sm_90": (GPUTarget("cuda", 90, 32), "cubin"), "gfx942": (GPUTarget("hip", "gfx942", 64), "hsaco")}
WORDS = ("i64", "i32", "i16", "u8")
ALIGNED: list[list[object]] = [["tt.divisibility", 16]]


def signatures(word: str) -> dict[str, tuple[object, dict[str, str], tuple[int, ...]]]:
    """By kernel: its function, the types of its arguments, and which of these are multiples of 16 where one can be."""
    unit = {"lists": "*i32", "count": "i32", "words": "i32"}
    found = {
        "copy_units": (gpu_triton.copy_units, {"source": f"*{word}", "target": f"*{word}", **unit}, (0, 1, 2, 4)),
        "zero_units": (gpu_triton.zero_units, {"target": f"*{word}", **unit}, (0, 1, 3)),
    }
    if word == "i32":
        update = {"mirror": "*i32", "staged": "*i32", "count": "i32"}
        tables = {"mirror": "*i32", "tables": "*i64", "out": "*i32", "batch_at": "i32", "width": "i32"}
        found["write_update"] = (gpu_triton.write_update, update, (0, 1))
        found["translate_rows"] = (gpu_triton.translate_rows, tables, (0, 1, 2))
        found["translate_rows of a large mirror"] = (gpu_triton.translate_rows, {**tables, "batch_at": "i64"}, (0,))
    return found


def features(code: str) -> str:
    """What is to be seen in a kernel's PTX."""
    wide = "16 bytes at once" if "ld.global.v2.b64" in code and "st.global.v2.b64" in code else ""
    long = "64-bit offsets" if "mul.wide.s32" in code else ""
    return ", ".join(word for word in (wide, long) if word)


def attributes(aligned: tuple[int, ...], target: str, signature: dict[str, str]) -> dict[tuple[int, ...], object]:
    """What Triton finds out of arguments: multiples of 16 and, for AMD's devices, small memory behind a pointer."""
    found: dict[tuple[int, ...], list[list[object]]] = {(at,): [*ALIGNED] for at in aligned}
    if target == "gfx942":
        for at, (name, kind) in enumerate(signature.items()):
            if kind.startswith("*") and name not in ("source", "target"):
                found[(at,)] = [*found.get((at,), []), ["tt.pointer_range", 32]]
    return dict(found)


def main() -> None:
    """Compile, and print."""
    for word, (target, (gpu, binary)) in itertools.product(WORDS, TARGETS.items()):
        for name, (kernel, signature, aligned) in signatures(word).items():
            for some in (aligned, ()):
                attrs = attributes(some, target, signature)
                source = ASTSource(fn=kernel, signature=signature, constexprs={}, attrs=attrs)
                made = triton.compile(source, target=gpu, options=gpu_triton.NO_FLOATS)
                seen = features(made.asm.get("ptx", "")) if some else ""
                print(f"{name}|{word}|{target}|{binary}|{len(made.asm[binary])}|{seen}")


if __name__ == "__main__":
    main()
