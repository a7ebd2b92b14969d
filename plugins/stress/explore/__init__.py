"""Every interleaving of a small world, to a stated depth."""
