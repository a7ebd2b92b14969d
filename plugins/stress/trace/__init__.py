"""Traces: what the allocator decided, operation by operation, and where another checkout parts from it."""
