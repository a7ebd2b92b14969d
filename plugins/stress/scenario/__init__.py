"""Scenario files: a chain, operations and expected answers in TOML, played and judged."""
