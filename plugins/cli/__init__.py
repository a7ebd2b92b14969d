"""The ``kvarena`` command: a group whose commands are plugins, and what they print with."""
