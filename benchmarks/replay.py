"""How fast a trace is replayed: ``python benchmarks/replay.py [--json]``.

Replays the Mooncake conversation slice from the folder in KVARENA_TRACES, else the small shipped slice, on the
host backend: all of it for Llama 3.1 8B, and its first 1,000 requests for Gemma 3 4B (windows and full attention).
The allocator's time is what the loop spends in admission, steps, closes and flushes.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

from rows import figure, show

from kvarena.plugins.models import read_model
from kvarena.plugins.replay.replay import ReplaySettings, replay
from kvarena.plugins.replay.traces import Trace, TraceOptions, read_trace
from kvarena.terms.units import parse_bytes

ROOT = Path(__file__).resolve().parents[1]
SMALL = ROOT / "examples" / "data" / "azure_conv_48.csv"
LARGE = "mooncake_conversation.jsonl"
LLAMA = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
GEMMA = {
    "model_type": "gemma3_text",
    "vocab_size": 262208,
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "num_hidden_layers": 34,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 1024,
    "sliding_window_pattern": 6,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
CASES = {"llama-3.1-8b": (LLAMA, None), "gemma-3-4b": (GEMMA, 1000)}


def trace_of(limit: int | None) -> Trace:
    """The large trace where its folder is known, else the shipped one."""
    folder = os.environ.get("KVARENA_TRACES")
    path = Path(folder) / LARGE if folder else SMALL
    return read_trace(path, TraceOptions(limit=limit))


def measure(name: str, config: dict[str, Any], trace: Trace) -> list[dict[str, Any]]:
    """The rows of one model."""
    spec = read_model(config, source=name)
    settings = ReplaySettings(memory=parse_bytes("60GiB"), with_timings=True)
    began = time.perf_counter()
    document = replay(spec, trace, settings)
    seconds = time.perf_counter() - began
    case = f"{name}, {len(trace.rows)} requests of {Path(trace.source).name}, {document['steps']} steps"
    found = {
        "requests/s of wall time": len(trace.rows) / seconds,
        "allocator us/step": document["timings"]["allocator_us_per_step"],
    }
    return [figure(case, value, unit) for unit, value in found.items()]


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--limit", type=int, help="only so many requests")
    arguments = parser.parse_args()
    rows = [
        row
        for name, (config, limit) in CASES.items()
        for row in measure(name, config, trace_of(arguments.limit or limit))
    ]
    show(rows, as_json=arguments.json)


if __name__ == "__main__":
    main()
