"""Rooms above the core, from reading models to the command line. Each may be left out; ``core`` imports none."""
