"""The pages of one sub-pool inside the arena: ids and their maps, the span, its holes.

A band knows its own grid and nothing of its neighbours; where it may grow is decided by ``pricing`` and
handed to it. It moves no bytes: the chain copies, the band then rebinds.
"""
