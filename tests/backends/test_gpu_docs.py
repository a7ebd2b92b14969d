"""docs/gpu.md: its example prints what it says, its config is one, and its figures are those of the code."""

import contextlib
import io
import re
import tomllib
from pathlib import Path

import attrs
import pytest

from kvarena.assembly.config import Choice, StorageConfig, structure
from kvarena.backends import gpu_device, gpu_uploads
from kvarena.backends.cuda import CudaDevice
from kvarena.planning.mirroring import ID_BYTES
from kvarena.plugins.cli.doctor import NO_GPU_SEEN

PAGE = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text(encoding="utf-8")


@pytest.mark.req("LIF-8")
def test_the_example_prints_what_the_page_says() -> None:
    """On the cpu backend, to the letter."""
    ((code, output),) = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "docs/gpu.md", "exec"), {})
    assert out.getvalue() == output


def test_the_config_names_settings_that_there_are() -> None:
    """The TOML is a storage's, and each setting of the backend has a row of the table."""
    (text,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    config = structure(StorageConfig, tomllib.loads(text), "gpu.md")
    assert Choice.of(config.backend).name == "cuda"
    known = {field.name for field in attrs.fields(CudaDevice) if field.init}
    assert set(config.backend.settings) == known
    assert all(f"| `{name}` |" in PAGE for name in known)


def test_figures_of_the_page_are_those_of_the_code() -> None:
    """How many pages a list has, how many runs are few, how many lists may wait, and what they take."""
    assert f"1 for each {gpu_uploads.ENTRIES:,} pages" in PAGE
    assert f"a ring of {gpu_uploads.SLOTS} lists" in PAGE
    assert f"at most {gpu_device.FEW_RUNS} runs" in PAGE
    assert f"runs of {gpu_device.RUN_BYTES >> 10} KiB and more" in PAGE
    assert gpu_uploads.SLOTS * gpu_uploads.LISTS_MAX * gpu_uploads.ENTRIES * 4 == 1 << 20
    assert "1 MiB for lists of pages" in PAGE
    assert "256 rows of 131,072 tokens in pages of 16 and two sub-pools these are 16 MiB" in " ".join(PAGE.split())
    assert 256 * (131_072 // 16) * ID_BYTES * 2 == 16 << 20


def test_the_page_and_doctor_say_that_nothing_ran_on_a_gpu() -> None:
    """In the same words, where a reader looks first."""
    assert "No GPU was there when this version was built" in PAGE.partition("## ")[0]
    assert "no GPU was there when this version was built" in NO_GPU_SEEN
    assert "`pytest -m gpu`" in PAGE
    assert "`pytest -m gpu`" in NO_GPU_SEEN
