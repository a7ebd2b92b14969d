"""The place where tower and wings meet: config files in, plugins found, one storage built.

``config`` says what may be written and refuses what may not; ``catalog`` finds plugins by kind and
name; ``loader`` turns a name with settings into an object; ``hookspecs`` are the few hooks.
"""
