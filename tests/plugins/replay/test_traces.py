"""Promises of the trace readers: every real format, cutting and scaling, and bad input with its place."""

import json
import os
from pathlib import Path

import pytest

from kvarena.assembly.config import SettingError
from kvarena.plugins.replay.traces import READERS, TraceOptions, read_trace
from kvarena.terms.errors import ConfigError

DATA = Path(__file__).parents[2] / "data" / "traces"
SHIPPED = Path(__file__).parents[3] / "examples" / "data" / "azure_conv_48.csv"
FILES = {
    "mooncake": "mooncake.jsonl",
    "azure": "azure.csv",
    "burstgpt": "burstgpt.csv",
    "servegen": "servegen_image-trace.csv",
    "coding-agent": "session_with_agents.json",
}
SKIP = TraceOptions(on_bad="skip")


@pytest.mark.parametrize(("name", "file"), FILES.items())
def test_a_format_is_told_from_the_content(name, file):
    """Without --format each fixture is read by the reader of its format, and in order of arrival."""
    trace = read_trace(DATA / file, SKIP)

    assert trace.format == name
    assert trace.rows == read_trace(DATA / file, TraceOptions(format=name, on_bad="skip")).rows
    assert [row.arrival for row in trace.rows] == sorted(row.arrival for row in trace.rows)
    assert set(FILES) == set(READERS)


def test_mooncake_carries_its_block_ids():
    """Prompts are ids of 512-token blocks, the last one partial, and times are in milliseconds."""
    trace = read_trace(DATA / "mooncake.jsonl")

    first = trace.rows[0]
    assert (first.line, first.arrival, first.prompt_tokens, first.output_tokens) == (1, 0.0, 6758, 500)
    assert first.prefix_ids == tuple(range(14))
    assert first.block_tokens == 512
    assert first.session is None
    assert len(trace.rows) == 24
    assert max(row.arrival for row in trace.rows) < 60


def test_azure_times_are_seconds_from_the_first_row():
    """Seven fractional digits are kept: the difference of the stamps, not of truncated ones."""
    first, second = read_trace(DATA / "azure.csv").rows[:2]

    assert (first.line, first.arrival, first.prompt_tokens, first.output_tokens) == (2, 0.0, 374, 44)
    assert second.arrival == pytest.approx(50.995169 - 46.680590, abs=1e-9)
    assert second.prefix_ids is None


def test_azure_times_may_carry_a_zone(tmp_path):
    """The 2024 traces write an offset; a missing fraction is whole seconds."""
    file = tmp_path / "a.csv"
    file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,5,6\n2024-05-10 00:00:01+00:00,7,8\n"
    )

    assert read_trace(file).rows[1].arrival == pytest.approx(0.99007)


def test_burstgpt_failures_are_bad_rows():
    """Rows of zeros stop the reading with their line, or are skipped and counted: none is lost in silence."""
    with pytest.raises(ConfigError, match=r"burstgpt\.csv: line 22: .*failed request.*--on-bad skip"):
        read_trace(DATA / "burstgpt.csv")

    trace = read_trace(DATA / "burstgpt.csv", SKIP)
    assert [bad.place for bad in trace.skipped] == ["line 22", "line 40", "line 42", "line 43"]
    assert len(trace.rows) + len(trace.skipped) == 47
    assert trace.rows[0].arrival == 5.0


def test_servegen_is_read_from_either_half_and_is_deterministic():
    """The pair is one client; a seed gives the same rows, another one gives others."""
    trace = read_trace(DATA / "servegen_image-trace.csv")

    assert trace.rows == read_trace(DATA / "servegen_image-dataset.json").rows
    assert trace.rows != read_trace(DATA / "servegen_image-trace.csv", TraceOptions(seed=1)).rows


def test_servegen_keeps_the_rate_and_the_lengths():
    """Over a window the arrivals have its rate, and all lengths come from the histograms of its hours."""
    rows = read_trace(DATA / "servegen_image-trace.csv", TraceOptions(start=0, stop=2400)).rows

    expected = 600 * (0.805 + 0.935 + 0.9316666666666666 + 0.9333333333333333)
    assert len(rows) == pytest.approx(expected, rel=0.06)
    texts, images = {136, 372}, {525, 714, 1196, 1222, 1230}
    assert {row.prompt_tokens for row in rows} <= {text + image for text in texts for image in images}
    assert max(row.arrival for row in rows) < 2400


def test_servegen_windows_do_not_depend_on_each_other():
    """Each window has its own stream of numbers, so a range reads the same rows as the whole."""
    whole = read_trace(DATA / "servegen_image-trace.csv").rows
    part = read_trace(DATA / "servegen_image-trace.csv", TraceOptions(start=21600)).rows

    late = [row for row in whole if row.arrival >= 21600]
    assert [(row.line, row.prompt_tokens, row.output_tokens) for row in part] == [
        (row.line, row.prompt_tokens, row.output_tokens) for row in late
    ]
    assert {row.line for row in part} == {6, 7}


def test_sessions_nest_sub_agents():
    """A sub-agent's requests are timed from its start, and ids stay those of the session."""
    trace = read_trace(DATA / "session_with_agents.json")

    assert [round(row.arrival, 3) for row in trace.rows] == [0.0, 160.959, 165.959, 300.351, 307.351, 323.0, 373.0]
    assert {row.session for row in trace.rows} == {"trace_0274"}
    assert {row.block_tokens for row in trace.rows} == {64}
    assert all(len(row.prefix_ids) == row.prompt_tokens // 64 for row in trace.rows)
    agents = [row.prefix_ids[:10] for row in trace.rows if 100 < row.arrival < 310]
    assert len(set(agents)) == 1


def test_a_folder_of_sessions_is_one_trace(tmp_path):
    """Sessions of a folder are merged by arrival and told apart by their names."""
    for file in DATA.glob("session_*.json"):
        (tmp_path / file.name).write_text(file.read_text())

    trace = read_trace(tmp_path)
    assert trace.format == "coding-agent"
    assert {row.session for row in trace.rows} == {"trace_0274", "trace_0504"}


def test_a_range_is_taken_and_counted_from_its_start():
    """Rows in [start, stop) seconds, the first limit of them, with arrivals from the start, scaled."""
    rows = read_trace(DATA / "azure.csv").rows
    cut = read_trace(DATA / "azure.csv", TraceOptions(start=4, stop=9, limit=3, time_scale=0.5)).rows

    inside = [row for row in rows if 4 <= row.arrival < 9][:3]
    assert [row.line for row in cut] == [row.line for row in inside]
    assert [row.arrival for row in cut] == pytest.approx([(row.arrival - 4) / 2 for row in inside])


def test_lengths_are_scaled_then_clipped_and_blocks_with_them():
    """A prompt of 13.2 blocks stays one: the block shrinks too, and clipped blocks are dropped."""
    plain = read_trace(DATA / "mooncake.jsonl").rows[0]
    shaped = read_trace(DATA / "mooncake.jsonl", TraceOptions(length_scale=0.125, prompt_max=200, output_max=9)).rows[0]

    assert (shaped.prompt_tokens, shaped.output_tokens, shaped.block_tokens) == (200, 9, 64)
    assert shaped.prefix_ids == plain.prefix_ids[:4]
    tiny = read_trace(DATA / "mooncake.jsonl", TraceOptions(length_scale=1e-9)).rows[0]
    assert (tiny.prompt_tokens, tiny.output_tokens) == (1, 1)
    huge = read_trace(DATA / "mooncake.jsonl", TraceOptions(length_scale=1e308, prompt_max=200, output_max=9)).rows[0]
    assert (huge.prompt_tokens, huge.output_tokens) == (200, 9)


def test_the_shipped_slice_suits_the_quickstart():
    """48 real conversations within half a minute, with short and long prompts."""
    trace = read_trace(SHIPPED)

    assert (trace.format, len(trace.rows)) == ("azure", 48)
    assert trace.rows[-1].arrival < 30
    assert min(row.prompt_tokens for row in trace.rows) < 100 < 4000 < max(row.prompt_tokens for row in trace.rows)


BAD_LINES = [
    ('{"timestamp": 0, "input_length": 0, "output_length": 5, "hash_ids": []}', "input_length is 0"),
    ('{"timestamp": 0, "input_length": 9, "output_length": -5, "hash_ids": [1]}', "output_length is -5"),
    ('{"timestamp": -1, "input_length": 9, "output_length": 5, "hash_ids": [1]}', "timestamp is -1"),
    ('{"timestamp": NaN, "input_length": 9, "output_length": 5, "hash_ids": [1]}', "timestamp is nan"),
    ('{"timestamp": 0, "input_length": 9.5, "output_length": 5, "hash_ids": [1]}', "input_length is 9.5"),
    ('{"timestamp": 0, "input_length": true, "output_length": 5, "hash_ids": [1]}', "input_length is True"),
    ('{"timestamp": 0, "input_length": 9e99, "output_length": 5, "hash_ids": [1]}', "not a whole number"),
    ('{"timestamp": 0, "input_length": 99999999999, "output_length": 5, "hash_ids": [1]}', "more than"),
    ('{"timestamp": 0, "output_length": 5, "hash_ids": [1]}', "'input_length' is missing"),
    ('{"timestamp": 0, "input_length": 900, "output_length": 5, "hash_ids": [1]}', "blocks of 512 tokens make 2"),
    ('{"timestamp": 0, "input_length": 9, "output_length": 5, "hash_ids": ["x"]}', "not a list of whole numbers"),
    ("[1, 2]", "found list"),
    ('{"timestamp": 0, "input_le', "broken JSON.*cut off"),
]


@pytest.mark.parametrize(("text", "says"), BAD_LINES)
def test_a_bad_mooncake_line_is_named_or_skipped(tmp_path, text, says):
    """The error has file, line, finding and cure; with skip the other rows are read and the line is kept."""
    file = tmp_path / "m.jsonl"
    good = '{"timestamp": 1000, "input_length": 9, "output_length": 5, "hash_ids": [1]}'
    file.write_text(f"{good}\n\n{text}")

    with pytest.raises(ConfigError, match=rf"m\.jsonl: line 3: .*{says}.*--on-bad skip"):
        read_trace(file)
    trace = read_trace(file, SKIP)
    assert [row.line for row in trace.rows] == [1]
    assert [bad.place for bad in trace.skipped] == ["line 3"]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("2023-11-16 18:15:50.1,0,3", "ContextTokens is 0"),
        ("2023-11-16 18:15:50.1,4,-3", "GeneratedTokens is -3"),
        ("2023-11-16 18:15:50.1,4", "2 fields, where the header has 3; the row may be cut off"),
        ("2023-11-16 18:15:50.1,four,5", "ContextTokens is 'four'"),
        ("yesterday,4,5", "time 'yesterday'"),
        ("2023-13-99 18:15:50.1,4,5", "time '2023-13-99"),
        ("2022-11-16 18:15:50.1,4,5", "before that of the first row"),
    ],
)
def test_a_bad_azure_row_is_named_or_skipped(tmp_path, row, says):
    """CSV rows are checked like JSON ones, by line of the file."""
    file = tmp_path / "a.csv"
    file.write_bytes(f"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.68,1,2\r\n{row}".encode())

    with pytest.raises(ConfigError, match=rf"a\.csv: line 3: .*{says}"):
        read_trace(file)
    assert [bad.place for bad in read_trace(file, SKIP).skipped] == ["line 3"]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("empty.csv", b"", "line 1: the file is empty"),
        ("blank.jsonl", b"\n\n", "line 1: the file is empty"),
        ("what.txt", b"hello\nworld", "line 1: 'hello' begins no trace format.*--format: mooncake, azure"),
        ("packed.jsonl", b"\x1f\x8b\x08\xff\xfe", "not a text file; if it is compressed"),
        ("only.csv", b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n", "no request could be read"),
        ("head.csv", b"TIME,ContextTokens,GeneratedTokens\r\n", "line 1: no column 'TIMESTAMP' in the header"),
        ("cut.json", b'{"block_size": 64, "requests": [{"t": 0', "line 1: broken JSON.*cut off"),
        ("odd.json", b'{"block_size": 64, "requests": 7}', "'requests' is int"),
        ("zero.json", b'{"block_size": 0, "requests": []}', "block_size is 0"),
        ("none.json", b'{"block_size": 64, "requests": []}', "no request could be read"),
        ("lone-trace.csv", b"0,1,1,Gamma,1,1\n", "put lone-dataset.json beside it"),
        ("unpaired.csv", b"0,1,1,Gamma,1,1\n", "NAME-dataset.json and NAME-trace.csv"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path, name, content, says):
    """One clear error names the file, what is wrong with it and what to do."""
    file = tmp_path / name
    file.write_bytes(content)

    with pytest.raises(ConfigError, match=says) as caught:
        read_trace(file)
    assert str(tmp_path) in str(caught.value)


def test_a_missing_file_and_an_unknown_format_are_refused(tmp_path):
    """A path that is not there, an empty folder, and a format that nobody reads."""
    with pytest.raises(ConfigError, match="cannot read it"):
        read_trace(tmp_path / "gone.csv")
    with pytest.raises(ConfigError, match=r"no \*\.json session in this folder"):
        read_trace(tmp_path)
    with pytest.raises(SettingError, match="format: is 'moncake'; did you mean 'mooncake'"):
        TraceOptions(format="moncake")


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("0,1,1,Gama,1,1", "did you mean 'Gamma'"),
        ("0,1,1,Gamma,1", "5 fields, where 6"),
        ("0,-1,1,Gamma,1,1", "rate is '-1'"),
        ("0,1e9,1,Gamma,1,1", "requests a second"),
        ("0,1,1,Weibull,0,1", "shape 0"),
    ],
)
def test_a_bad_servegen_window_is_named_or_skipped(tmp_path, row, says):
    """A window is a row of the trace file; the line of that file is named."""
    (tmp_path / "c-dataset.json").write_text(json.dumps({"0": {"input_tokens": "{5: 1.0}", "output_tokens": "{6: 1}"}}))
    (tmp_path / "c-trace.csv").write_text(f"{row}\n600,0.5,,,0,0\n1200,0.5,1,Gamma,1,1\n".replace(",,,", ",0,,"))

    with pytest.raises(ConfigError, match=rf"c-trace\.csv: line 1: .*{says}"):
        read_trace(tmp_path / "c-trace.csv", TraceOptions(format="servegen"))
    trace = read_trace(tmp_path / "c-trace.csv", TraceOptions(format="servegen", on_bad="skip"))
    assert len(trace.skipped) == 1
    assert {(row.prompt_tokens, row.output_tokens) for row in trace.rows} == {(5, 6)}


@pytest.mark.parametrize("text", ["{}", "{0: 1.0}", "[1]", "{'a': 1}", "{5: -1}", "__import__('os')", "{5:"])
def test_a_histogram_that_gives_no_length_is_refused(tmp_path, text):
    """Histograms are literals: empty, zero, negative or code in them is a bad row of that window."""
    (tmp_path / "c-dataset.json").write_text(json.dumps({"0": {"input_tokens": text, "output_tokens": "{6: 1}"}}))
    (tmp_path / "c-trace.csv").write_text("0,0.5,1,Gamma,1,1\n")

    with pytest.raises(ConfigError, match=r"c-trace\.csv: line 1: window 0 of c-dataset\.json"):
        read_trace(tmp_path / "c-trace.csv")


@pytest.mark.parametrize(
    "wrong",
    [
        {"on_bad": "ignore"},
        {"limit": 0},
        {"start": -1.0},
        {"time_scale": float("nan")},
        {"length_scale": 0.0},
        {"prompt_max": 0},
    ],
)
def test_options_out_of_range_are_refused(wrong):
    """The error names the setting; who read it says where it stood."""
    with pytest.raises(SettingError) as error:
        TraceOptions(**wrong)
    assert error.value.setting == next(iter(wrong))


@pytest.mark.parametrize(
    ("file", "rows", "skipped"),
    [
        ("mooncake_conversation.jsonl", 8000, 0),
        ("mooncake_synthetic.jsonl", 2662, 0),
        ("azure_llm_2023_conv.csv", 12910, 0),
        ("burstgpt_1_head400.csv", 256, 11),
        ("coding_agent", 235, 0),
        ("servegen/reason_deepseek-r1_chunk-0-trace.csv", 5113, 0),
    ],
)
def test_the_large_traces_are_read_whole(file, rows, skipped):
    """Every row of the published slices is read, or counted as skipped."""
    folder = os.environ.get("KVARENA_TRACES")
    if not folder:
        pytest.skip("KVARENA_TRACES does not name the folder of the large traces")

    trace = read_trace(Path(folder) / file, SKIP)
    assert (len(trace.rows), len(trace.skipped)) == (rows, skipped)


@pytest.mark.parametrize("prompt", ["²", "1e9"])
def test_odd_digits_are_a_bad_row(tmp_path: Path, prompt: str) -> None:
    """What some call a digit is no number of tokens, and its line is named."""
    file = tmp_path / "t.csv"
    file.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,{prompt},2\n")
    with pytest.raises(ConfigError, match=r"line 2: ContextTokens is .*, not a whole number"):
        read_trace(file)


def test_an_absurd_time_is_refused(tmp_path: Path) -> None:
    """A clock of 1e308 seconds would lose every step that is added to it."""
    file = tmp_path / "t.csv"
    file.write_text("Timestamp,Model,Request tokens,Response tokens\n1e308,m,4,2\n")
    with pytest.raises(ConfigError, match=r"line 2: .* not a number from 0 to"):
        read_trace(file)
    file.write_text("Timestamp,Model,Request tokens,Response tokens\n1e9,m,4,2\n")
    with pytest.raises(ConfigError, match="time_scale 1e"):
        read_trace(file, TraceOptions(time_scale=1e300))
