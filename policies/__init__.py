"""Choices a chain leaves to config: the order of holes, how much to compact, where an empty float goes.

Policies are frozen values found through entry points; their attributes are their settings.
"""
