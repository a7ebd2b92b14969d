"""The bands of one arena as a chain: the one place that hands out, frees and moves pages.

``chain`` holds the state; ``relief`` realizes an arrangement; ``describe`` and ``verify`` only read.
"""
