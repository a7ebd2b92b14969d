"""The built-in layouts: what one entry of a layer's memory is made of. Imports ``terms`` alone.

Each is a frozen value found through the entry points of the group ``kvarena.layouts``; offsets,
pages and alignment are derived in ``planning``.
"""
