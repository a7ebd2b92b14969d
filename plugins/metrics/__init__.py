"""Metrics: what a storage and its loop hold and have done, for Prometheus; read when somebody asks, never on a step."""
