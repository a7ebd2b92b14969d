"""The ground floor: the words that every other room speaks.

Values and protocols only. Imports nothing of kvarena; may be imported by every room and every wing.
"""
