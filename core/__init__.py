"""kvarena."""
