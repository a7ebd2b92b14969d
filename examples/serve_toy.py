"""Serve the toy model with the toy engine, and say what became of each request: ``python examples/serve_toy.py``."""

from pathlib import Path

from engine import Engine
from toy_model import traffic

from kvarena.assembly.config import read_toml

engine, requests = Engine(read_toml(Path(__file__).with_name("engine.toml"))), traffic()
engine.waiting += requests
while engine.step():
    pass
for r in requests:
    print(f"{r.name:>8}  cached {r.cached:2} of {r.prompt}, retracted {r.retracted}, {r.fate[:50]}: {r.answer}")
