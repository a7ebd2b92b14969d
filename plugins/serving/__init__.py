"""The scheduler loop: continuous batching with chunked prefill over one storage, and its runners' port.

The same loop serves a real model and replays a trace against a cost model; only the runner differs.
"""
