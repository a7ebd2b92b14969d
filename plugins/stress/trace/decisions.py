"""What a trace keeps of the host's decisions after each operation, and two of these compared, in words."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kvarena.plugins.stress.stage.stage import TIMED, Outcome, Stage
from kvarena.terms.errors import ConfigError

BAND_FIELDS = (
    "live", "holes", "pending", "vacated", "reserved", "start", "stop", "fixed_start", "fixed_stop", "map",
)  # fmt: skip
"""Of each band, in the order of the numbers in a line: counts, frontiers, and a digest of which id is on which page."""
STEP_FIELDS = ("launched", "recorded", "retired", "processed")
ROWS = {"lengths": "lengths of the requests", "ids": "ids in the request rows", "slots": "state slots of the requests"}
_MAPS = {"map": "which id is on which page"}


def decisions_of(stage: Stage) -> dict[str, Any]:
    """Per band its counts, frontiers and map; the forwards' numbers, open uses and moves; the request rows."""
    chain, table = stage.storage.chain, stage.storage.requests
    steps = chain.ledger.steps
    bands = {}
    for shot, band in zip(chain.snapshot().bands, chain.bands.values(), strict=True):
        counts = [int(getattr(shot, name)) for name in BAND_FIELDS[:-1]]
        bands[shot.name] = [*counts, _digest(band.ids.pages_of(np.arange(band.grid.id_count)))]
    return {
        "bands": bands,
        "steps": [int(getattr(steps, name)) for name in STEP_FIELDS],
        "uses": len(chain.ledger.uses),
        "moves": int(chain.counters.moves),
        "rows": {"lengths": _digest(table.lengths), "ids": _digest(table.flat), "slots": _digest(table.slots)},
    }


def came_of(verb: str, outcome: Outcome) -> dict[str, Any]:
    """An outcome as a trace keeps it: a value in full, of an error its name; messages may be worded anew.

    Of what depends on when work lands only the kind is kept: that is no decision.
    """
    if outcome.kind == "value":
        return {"value": None if verb in TIMED else plain(outcome.value)}
    return {outcome.kind: outcome.name}


def plain(value: Any) -> Any:
    """A value as JSON gives it back."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return str(value)


def check_decisions(says: Mapping[str, Any], place: str) -> None:
    """Whether a line that was read can be compared.

    Raises:
        ConfigError: something in it is of another kind than ``decisions_of`` writes; with the place.
    """
    kinds: Mapping[str, tuple[type, str]] = {
        "bands": (dict, "a table of lists"), "steps": (list, "a list of numbers"), "rows": (dict, "a table"),
        "came": (dict, "a table"),
    }  # fmt: skip
    wrong = [name for name, (kind, _) in kinds.items() if name in says and not isinstance(says[name], kind)]
    if not wrong and not all(isinstance(band, list) for band in says.get("bands", {}).values()):
        wrong = ["bands"]
    if wrong:
        name = wrong[0]
        raise ConfigError(f"{place}: {name}: must be {kinds[name][1]}, not {str(says[name])[:60]!r}; record it again")


def differences(recorded: Mapping[str, Any], now: Mapping[str, Any], fields: Sequence[str]) -> list[str]:
    """What of an operation's line is not as it was, in words. ``fields``: of the bands, as the trace was recorded."""
    return list(_differing(recorded, now, fields))


def _differing(recorded: Mapping[str, Any], now: Mapping[str, Any], fields: Sequence[str]) -> Iterator[str]:
    before, after = recorded.get("came"), now.get("came")
    if before != after:
        yield f"it came to {_outcome(before)} -> {_outcome(after)}"
    bands, its = recorded.get("bands", {}), now.get("bands", {})
    for name in [*bands, *(name for name in its if name not in bands)]:
        if name not in bands or name not in its:
            yield f"band {name}: " + ("there -> not there" if name in bands else "not there -> there")
            continue
        was, has = dict(zip(fields, bands[name], strict=False)), dict(zip(BAND_FIELDS, its[name], strict=False))
        for field in [field for field in fields if field in has and was.get(field) != has[field]]:
            yield f"band {name}: " + (_MAPS[field] if field in _MAPS else f"{field} {was.get(field)} -> {has[field]}")
    for name, was, has in zip(STEP_FIELDS, recorded.get("steps", ()), now.get("steps", ()), strict=False):
        if was != has:
            yield f"forwards: {name} {was} -> {has}"
    for name, words in (("uses", "open uses of pages"), ("moves", "pages moved")):
        if recorded.get(name) != now.get(name):
            yield f"{words}: {recorded.get(name)} -> {now.get(name)}"
    rows, has = recorded.get("rows", {}), now.get("rows", {})
    yield from (words for name, words in ROWS.items() if rows.get(name) != has.get(name))


def _outcome(came: Any) -> str:
    if not isinstance(came, Mapping) or len(came) != 1:
        return "nothing"
    ((kind, value),) = came.items()
    return str(value) if kind == "value" else "a refusal" if kind == "refused" else f"{kind} {value}".rstrip()


def _digest(values: Any) -> str:
    return f"{zlib.crc32(np.ascontiguousarray(values).tobytes()):08x}"
