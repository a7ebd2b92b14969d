"""The released allocators that ours is measured beside, our own side of the same work, and the goals."""
