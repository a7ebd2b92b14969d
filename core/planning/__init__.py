"""Pure functions on frozen values: what is stored (plan), how much of it (sizing), what a request
needs (demand), and whether a demand fits (pricing). Imports ``terms`` alone; changes nothing.
"""
