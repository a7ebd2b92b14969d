"""A prefix cache over one storage: a radix tree at page grain, one slot per sub-pool, shared by all kinds.

A match lands where every kind can resume: all pages of full attention, the window rows behind the landing, and a
state that was kept exactly there. Which piece goes when memory is short is an eviction policy's to say.
"""

from kvarena.plugins.prefix_tree.match import Match
from kvarena.plugins.prefix_tree.node import Entry
from kvarena.plugins.prefix_tree.stats import TreeStats
from kvarena.plugins.prefix_tree.tree import Inserted, PrefixTree

__all__ = ["Entry", "Inserted", "Match", "PrefixTree", "TreeStats"]
