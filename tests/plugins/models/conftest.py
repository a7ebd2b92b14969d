"""What the tests of model readers share: the catalog of this environment, and configs by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvarena.assembly.catalog import Catalog
from kvarena.plugins.models import ModelSpec, read_model

DATA = Path(__file__).parents[2] / "data" / "models"


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    """All that is installed here, found once."""
    return Catalog.installed()


@pytest.fixture(scope="session")
def model_files() -> Path:
    """The folder of published configs."""
    return DATA


@pytest.fixture
def published() -> Any:
    """A published config by name, fresh for each call, with some values changed or (None) taken out."""

    def config(name: str, **changes: Any) -> dict[str, Any]:
        data = {**json.loads((DATA / f"{name}.json").read_text(encoding="utf-8")), **changes}
        return {key: value for key, value in data.items() if not (key in changes and value is None)}

    return config


@pytest.fixture
def read(catalog: Catalog) -> Any:
    """``read_model`` with this environment's catalog."""

    def call(config: dict[str, Any], **options: Any) -> ModelSpec:
        return read_model(config, catalog=catalog, **options)

    return call
