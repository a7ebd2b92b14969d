"""Where a mistake stands: every command names the file and the key, or the option that stands for it."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kvarena.plugins.cli.main import run

Capture = pytest.CaptureFixture[str]
DATA = Path(__file__).parents[2] / "data" / "traces"
QUICKSTART = Path(__file__).parents[3] / "examples" / "quickstart.toml"
LAYERS = """
[[layers]]
index = 0
layout = "mha"
kv_heads = 1
head_dim = 64

[[layers]]
index = 1
layout = "short-conv"
channels = 64
columns = 3
lifetime = "state"
"""
NO_POLICY = "no policy is named 'nope'; choose one of: "
EVICTIONS = "lfu, lru, priority, worth"


def told(capsys: Capture, *arguments: object) -> str:
    """What a command that must fail says: one message, exit code 2, nothing on stdout."""
    assert run([str(argument) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return re.sub(r"\.toml:\d+: ", ".toml: ", captured.err)  # which line: tests/core/assembly/test_lines.py


def plan_file(folder: Path, sections: str, arena: str = "") -> Path:
    """A file for ``kvarena plan``."""
    memory = "" if "memory" in arena else 'memory = "1GiB"\n'
    path = folder / "serve.toml"
    path.write_text(f"[arena]\n{memory}{arena}\n{sections}\n{LAYERS}")
    return path


@pytest.mark.parametrize(
    ("arena", "sections", "says"),
    [
        ('memory = "1KiB"', "", "arena.memory: a budget of 1,024 B (1.00 KiB) cannot hold one request"),
        ("caps = { nobody = 3 }", "", "arena.caps: the plan has no sub-pool 'nobody'; choose one of: full, state"),
        ('memory = "16TiB"', "", "arena.memory: sub-pool 'state' would have"),
        ("state_slots = 4\nslots_per_request = 8", "", "arena.state_slots: state_slots = 4 is less than the 8 slots"),
        ("", "[prefix]\nshare = true\ncheckpoint_tokens = 17", "prefix.checkpoint_tokens: 17 is no multiple of"),
        ("", '[prefix]\neviction = "nope"', f"prefix.eviction: {NO_POLICY}{EVICTIONS}"),
        ("", '[prefix]\neviction = "none"', "prefix.eviction: 'none' is no eviction policy, it has no 'splits'"),
        ("", '[prefix]\neviction = { name = "lru", most = 1 }', "prefix.eviction.most: unknown key"),
        ("", '[policies]\nholes = "nope"', f"policies.holes: {NO_POLICY}nearest, recent"),
        ("", '[policies]\ncompaction = "lru"', "policies.compaction: 'lru' is no compaction policy"),
        ("", '[policies]\nplacement = "mid"', "policies.placement: no policy is named 'mid'; did you mean 'middle'?"),
        ("", '[plugins]\ndisable = ["nope"]', "plugins.disable: no installed plugin is named 'nope'"),
    ],
)  # fmt: skip
def test_a_plan_s_file_is_told_by_file_and_key(
    tmp_path: Path, capsys: Capture, arena: str, sections: str, says: str
) -> None:
    """Settings that contradict the layers too, which are found when all is added up."""
    path = plan_file(tmp_path, sections, arena)
    assert told(capsys, "plan", path).startswith(f"kvarena: {path}: {says}")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--memory", "1KiB"), "--memory: a budget of 1,024 B"),
        (("--memory", "1GiB", "--state-share", "3"), "--state-share must lie between 0 and 1"),
        (("--memory", "1GiB", "--state-slots", "4", "--slots-per-request", "8"), "--state-slots: state_slots = 4 is"),
        (("--memory", "1GiB", "--state-slots", "4", "--state-share", "0.5"), "--state-share state_slots is set too"),
        (("--memory", "1GiB", "--page-size", "0"), "--page-size must be a whole number >= 1"),
    ],
)  # fmt: skip
def test_an_option_of_plan_is_told_by_its_flag(
    config: Callable[..., Path], capsys: Capture, options: tuple[str, ...], says: str
) -> None:
    """Not by the key that it stands for."""
    assert told(capsys, "plan", config(), *options).startswith(f"kvarena: {says}")


def test_an_option_stands_for_the_key_of_a_file(tmp_path: Path, capsys: Capture) -> None:
    """What the command line says replaces what the file says, and takes the blame."""
    path = plan_file(tmp_path, "[prefix]\nshare = true\ncheckpoint_tokens = 64")
    said = told(capsys, "plan", path, "--page-size", "128")
    assert said.startswith(f"kvarena: {path}: prefix.checkpoint_tokens: 64 is no multiple of the page size of 128 ")
    assert "(--page-size); take 128" in said


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--eviction", "nope"), f"--eviction: {NO_POLICY}{EVICTIONS}"),
        (("--prefix-cache", "--eviction", "nearest"), "--eviction: 'nearest' is no eviction policy"),
        (("--prefix-cache", "--checkpoint-tokens", "17"), "--checkpoint-tokens: 17 is no multiple of the page size"),
        (("--memory", "1KiB"), "--memory: a budget of 1,024 B"),
        (("--page-size", str(10**8)), "--page-size 100,000,000 is absurd"),
        (("--chunk-tokens", str(10**13), "--step-tokens", str(10**13)), "--chunk-tokens 10,000,000,000,000 is absurd"),
        (("--gpu", "h9000"), "--gpu: gpu 'h9000' is no preset"),
        (("--format", "x"), "--format is 'x'; choose one of: azure"),
        (("--dtype", "float7"), " replay: Invalid value for '--dtype': unknown dtype 'float7'"),
    ],
)  # fmt: skip
def test_an_option_of_replay_is_told_by_its_flag(
    config: Callable[..., Path], capsys: Capture, options: tuple[str, ...], says: str
) -> None:
    """Never by the trace's path, nor by a key that this command has none of."""
    memory = () if "--memory" in options else ("--memory", "64MiB")
    said = told(capsys, "replay", "--model", config(), "--trace", DATA / "mooncake.jsonl", *memory, *options)
    assert any(line.startswith((f"kvarena: {says}", f"kvarena{says}")) for line in said.splitlines())


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("[prefix]", '[prefix]\neviction = "nope"', f"prefix.eviction: {NO_POLICY}{EVICTIONS}"),
        ("[prefix]", '[prefix]\neviction = { name = "lru", most = 1 }', "prefix.eviction.most: unknown key"),
        ("share = true", 'share = false\neviction = "none"', "prefix.eviction: 'none' is no eviction policy"),
        ("[prefix]", '[policies]\nholes = "lru"\n[prefix]', "policies.holes: 'lru' is no hole order"),
        ("[prefix]", '[plugins]\nenable = ["nope"]\n[prefix]', "plugins.enable: no installed plugin is named 'nope'"),
        ("checkpoint_tokens = 16", "checkpoint_tokens = 17", "prefix.checkpoint_tokens: 17 is no multiple of"),
        ("[arena]\n", "[arena]\ncaps = { nobody = 1 }\n", "arena.caps: the plan has no sub-pool 'nobody'"),
        ("[arena]\n", '[arena]\nmemory = "1KiB"\n', "arena.memory: a budget of 1,024 B"),
        ("[trace]", '[trace]\nformat = "x"', "trace.format: is 'x'; choose one of: azure"),
    ],
)
def test_a_dry_run_refuses_what_a_run_would(tmp_path: Path, capsys: Capture, old: str, new: str, says: str) -> None:
    """By file and key; nothing is planned on a word that nobody knows."""
    text = QUICKSTART.read_text().replace('file = "', f'file = "{QUICKSTART.parent}/').replace(old, new, 1)
    if "memory =" in new:
        text = text.replace("memory_requests = 2.5", "")
    path = tmp_path / "serve.toml"
    path.write_text(text)
    assert told(capsys, "run", path, "--dry-run").startswith(f"kvarena: serve.toml: {says}")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('model = "lfm3"', 'model = "nobody"', "serve.toml: model: 'nobody' is neither a tiny model nor a folder"),
        ("azure_conv_48.csv", "nothing.csv", "serve.toml: trace: "),
    ],
)
def test_what_a_setting_names_is_told_by_the_setting(
    tmp_path: Path, capsys: Capture, old: str, new: str, says: str
) -> None:
    """A model or a trace that cannot be read."""
    text = QUICKSTART.read_text().replace('file = "', f'file = "{QUICKSTART.parent}/')
    assert old in text
    path = tmp_path / "serve.toml"
    path.write_text(text.replace(old, new))
    assert told(capsys, "run", path, "--dry-run").startswith(f"kvarena: {says}")
    assert told(capsys, "run", QUICKSTART, "--model", "nobody", "--dry-run").startswith("kvarena: --model: 'nobody'")


@pytest.mark.parametrize(
    ("arena", "sections", "says"),
    [
        ('memory = "1KiB"', "", "arena.memory: a budget of 1,024 B"),
        ("caps = { nobody = 3 }", "", "arena.caps: the plan has no sub-pool 'nobody'"),
        ("", "[prefix]\nshare = true\ncheckpoint_tokens = 17", "prefix.checkpoint_tokens: 17 is no multiple of"),
        ("", '[prefix]\neviction = "nope"', f"prefix.eviction: {NO_POLICY}{EVICTIONS}"),
        ("", '[policies]\nholes = "nope"', f"policies.holes: {NO_POLICY}nearest, recent"),
        ("", '[plugins]\nenable = ["nope"]', "plugins.enable: no installed plugin is named 'nope'"),
        ("", '[[layers]]\nindex = 5\nlayout = "mhb"', "layers[0].layout: no layout is named 'mhb'"),
    ],
)
def test_the_file_of_stress_is_told_by_file_and_key(
    tmp_path: Path, capsys: Capture, arena: str, sections: str, says: str
) -> None:
    """Before a world is made of it."""
    path = plan_file(tmp_path, sections, arena)
    assert told(capsys, "stress", "--config", path, "--seeds", "0:2").startswith(f"kvarena: serve.toml: {says}")


def test_layers_without_a_lifetime_are_stressed(tmp_path: Path, capsys: Capture) -> None:
    """The default is one: full attention."""
    path = plan_file(tmp_path, "", 'memory = "1MiB"\ncontext_tokens = 256')
    assert run(["stress", "--config", str(path), "--seeds", "0:2", "--ops", "20"]) == 0
    assert "Traceback" not in capsys.readouterr().err
