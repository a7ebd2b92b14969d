"""Devices: where an arena's bytes live. ``host`` holds none, ``cpu`` has torch views, ``simulated`` a clock to turn."""
