"""What ``kvarena new`` writes: a plugin's package, from the templates in this folder."""
