"""What a new package is called, and what is in it."""

import ast
import tomllib

import pytest

from kvarena.plugins.scaffold.package import NAME_MAX, SORTS, Names, package
from kvarena.terms.errors import ConfigError

LONG = "kvarena-" + "a" * (NAME_MAX - len("kvarena-"))


@pytest.mark.parametrize(
    ("name", "distribution", "module", "entry", "camel"),
    [
        ("kvarena-row-scale", "kvarena-row-scale", "kvarena_row_scale", "row-scale", "RowScale"),
        ("Kvarena_Row.Scale", "kvarena-row-scale", "kvarena_row_scale", "row-scale", "RowScale"),
        ("sinks2", "sinks2", "sinks2", "sinks2", "Sinks2"),
    ],
)
def test_all_names_follow_from_one(name: str, distribution: str, module: str, entry: str, camel: str) -> None:
    """A distribution's name gives the module's, the one that configs say, and the class's."""
    assert Names.of(name) == Names(distribution, module, entry, camel)


BAD = ["", "-a", "a-", "a b", "a/b", "../a", "ä", "kvarena-", "kvarena-2x", "2x", "class", LONG + "a"]


@pytest.mark.parametrize("name", BAD)
def test_a_name_that_cannot_be_is_refused(name: str) -> None:
    """What pip, Python or a config could not say is told in one line, with the name and one that would do."""
    with pytest.raises(ConfigError) as refused:
        Names.of(name)

    assert str(refused.value).startswith(f"NAME {name!r}: ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["kvarena-mine", "kvarena-order", "kvarena-layout", LONG])
@pytest.mark.parametrize("sort", SORTS)
def test_a_package_is_whole(sort: str, name: str) -> None:
    """A project, a README whose config is TOML, a module with the class of the entry point, and a test of it."""
    names = Names.of(name)
    files = package(sort, names)
    project = tomllib.loads(files["pyproject.toml"])
    config = tomllib.loads(files["README.md"].partition("```toml\n")[2].partition("```")[0])
    points = project["project"]["entry-points"][f"kvarena.{SORTS[sort].group}"]
    module, _, attribute = points[names.entry].partition(":")
    classes = [node.name for node in ast.parse(files[f"{module}.py"]).body if isinstance(node, ast.ClassDef)]

    assert set(files) == {"pyproject.toml", "README.md", f"{names.module}.py", f"test_{names.module}.py"}
    assert project["project"]["name"] == names.distribution
    assert attribute in classes
    assert len(set(classes)) == len(classes)
    assert names.entry in str(config)
    assert f"class Test{attribute}(" in files[f"test_{names.module}.py"]
    assert not any("${" in text for text in files.values())
    assert max(len(line) for text in files.values() for line in text.splitlines()) <= 120
