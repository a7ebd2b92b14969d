"""Whether a request may start: demand in; ``Admit``, ``Wait`` with its reason, or ``Never`` with its sum out."""
