"""What kvarena's own pyproject.toml offers, for tests that everything offered is tested."""

import tomllib
from pathlib import Path


def own_names(kind: str) -> set[str]:
    """The names of kvarena's own entry points of a kind, such as ``layouts``."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return set(project["entry-points"][f"kvarena.{kind}"])
