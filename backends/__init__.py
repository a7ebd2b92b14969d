"""Devices: where an arena's bytes live. ``host`` holds none; ``cpu`` holds them in memory, with torch views."""
