"""The file of ``kvarena run``: a value out of range is told with the file and the key, never with a flag."""

import re
from pathlib import Path

import pytest

from kvarena.plugins.cli.run_config import read_run_config
from kvarena.terms.errors import ConfigError

CONFIG = """
model = "lfm3"
memory_requests = 2.5

[trace]
file = "trace.csv"
"""


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("limit = 0", r"run.toml: trace.limit: is 0; it must be >= 1"),
        ('on_bad = "ignore"', r"run.toml: trace.on_bad: is 'ignore'; choose one of: skip, stop"),
        ("length_scale = 0.0", r"run.toml: trace.length_scale: is 0.0; it must be > 0"),
        ("[serving]\nstep_tokens = 9", r"run.toml: serving.step_tokens: is 9, less than one chunk"),
        ("[serving]\noutput_fraction = 1.5", r"run.toml: serving.output_fraction: is 1.5; it must be above 0"),
    ],
)
def test_a_value_out_of_range_is_told_by_its_key(tmp_path: Path, lines: str, says: str) -> None:
    """The same settings are flags of ``kvarena replay``, and there the message has the flag."""
    path = tmp_path / "run.toml"
    path.write_text(CONFIG + lines + "\n")
    with pytest.raises(ConfigError) as error:
        read_run_config(path)
    assert says in re.sub(r"\.toml:\d+: ", ".toml: ", str(error.value))


def test_the_trace_section_is_the_reader_s_own_options(tmp_path: Path) -> None:
    """Every option of the reader is a key of ``[trace]``, and the file is sought beside the config."""
    path = tmp_path / "run.toml"
    path.write_text(CONFIG + "limit = 3\nseed = 7\n")
    trace = read_run_config(path).trace
    assert (trace.file, trace.limit, trace.seed) == (tmp_path / "trace.csv", 3, 7)
