"""docs/scenarios.md: its example passes, and every key and operation is explained."""

import re
from pathlib import Path

import attrs

from kvarena.assembly.catalog import Catalog
from kvarena.plugins.stress.scenario.file import Variants, read_scenario
from kvarena.plugins.stress.scenario.run import PASSED, run_scenario
from kvarena.plugins.stress.scenario.script import RUNNER_VERBS, STEP_KEYS
from kvarena.plugins.stress.stage.chain_spec import ChainSpec, PoolSpec
from kvarena.plugins.stress.stage.operations import VERBS

PAGE = (Path(__file__).parents[3] / "docs" / "scenarios.md").read_text(encoding="utf-8")


def test_the_example_passes(tmp_path: Path) -> None:
    """As it stands on the page, in all its variants."""
    blocks = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    path = tmp_path / "example.toml"
    path.write_text(blocks[0])
    report = run_scenario(read_scenario(path), Catalog.installed())
    assert (report.fate, report.runs) == (PASSED, 8)


def test_every_operation_is_explained_with_its_arguments() -> None:
    """A row for each verb, in its own words."""
    rows = {row[0]: row for row in re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \|$", PAGE, re.MULTILINE)}
    for verb in VERBS.values():
        assert rows[verb.name][1].startswith(verb.doc), verb.name
        missing = [name for name in (a.name for a in verb.arguments) if f"`{name}`" not in rows[verb.name][2]]
        assert not missing, (verb.name, missing)


def test_every_key_is_explained() -> None:
    """Of a chain, a sub-pool, a step, the variants and what the runner does by itself."""
    keys = {field.name for kind in (ChainSpec, PoolSpec, Variants) for field in attrs.fields(kind)}
    keys |= STEP_KEYS | set(RUNNER_VERBS) | {name for names in RUNNER_VERBS.values() for name in names}
    assert not sorted(key for key in keys if f"`{key}`" not in PAGE)
