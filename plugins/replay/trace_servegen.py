"""ServeGen clients (arXiv 2505.09999): arrival laws per window and histograms of lengths, drawn with a seed."""

import ast
import csv
import json
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import attrs
import numpy as np
import numpy.typing as npt

from kvarena.plugins.replay.trace_rows import BadRow, BadValueError, TraceRow, member, number
from kvarena.terms.errors import ConfigError, nearest

WINDOW_SECONDS = 600.0
"""How long the last window of a client lasts when no other window says it."""

RATE_MAX = 1e5
"""The most requests a second that a window may ask for."""

SHAPE_LEAST, SHAPE_MOST = 0.01, 1e6
"""Shapes of arrival laws that can be drawn from."""

_PAIR = re.compile(r"(.*?)(-?)(dataset\.json|trace\.csv)")
_ROW = re.compile(r"[0-9.eE+-]+,[0-9.eE+-]+,[0-9.eE+-]+,[A-Za-z]*,[^,]*,[^,]*")
_WINDOW = re.compile(r'\{\s*"\d+"\s*:\s*\{')
_MEDIA = ("image", "audio", "video")

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@attrs.frozen
class Histogram:
    """Values and their probabilities, which sum to 1."""

    values: Ints
    shares: Floats

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        """``count`` values, independent."""
        return rng.choice(self.values, size=count, p=self.shares)


@attrs.frozen
class Arrivals:
    """One window: requests come at ``rate`` per second, with gaps of this law, shape ``shape``."""

    start: float
    rate: float
    law: str
    shape: float
    seconds: float = WINDOW_SECONDS

    def draw(self, rng: np.random.Generator) -> Floats:
        """The arrival times inside the window, in seconds of the trace; the mean gap is 1 / rate."""
        stop = self.start + self.seconds
        times: list[Floats] = []
        now = self.start
        while now < stop:
            count = math.ceil((stop - now) * self.rate * 1.1) + 16
            drawn = now + np.cumsum(LAWS[self.law](rng, self.shape, count) / self.rate)
            times.append(drawn[drawn < stop])
            now = float(drawn[-1])
        return np.concatenate(times)


LAWS: dict[str, Callable[[np.random.Generator, float, int], Floats]] = {
    "Gamma": lambda rng, shape, count: rng.gamma(shape, 1 / shape, count),
    "Weibull": lambda rng, shape, count: rng.weibull(shape, count) / math.gamma(1 + 1 / shape),
    "Exponential": lambda rng, shape, count: rng.exponential(1.0, count),
}
"""Gaps of mean 1 by the name of the law: a renewal process per window, of the shape that was fitted."""


class ServeGen:
    """The pair ``NAME-dataset.json`` and ``NAME-trace.csv``; either file names it.

    Source: https://github.com/alibaba/ServeGen. ``trace.csv`` has no header: window start in seconds, rate
    per second, coefficient of variation of the gaps, law, shape, scale. The scale is replaced by the one
    that gives exactly this rate; a law without a usable shape takes 1 / cv^2 (Gamma).
    ``dataset.json`` has, for windows of several hours, histograms as strings of Python dicts. A multimodal
    prompt is its text plus, per medium, count times tokens each.
    Every window is drawn from (seed, its line), so that rows do not depend on which windows are read.
    """

    name = "servegen"

    def recognizes(self, path: Path, head: str) -> bool:
        first = head.lstrip().partition("\n")[0].strip()
        return bool(_ROW.fullmatch(first) or (_WINDOW.match(head.lstrip()) and "_tokens" in head))

    def rows(self, path: Path, seed: int) -> Iterator[TraceRow | BadRow]:
        lengths, windows = pair(path)
        datasets = _datasets(lengths)
        starts = sorted(datasets)
        for line, arrivals in _windows(windows):
            if isinstance(arrivals, BadRow):
                yield arrivals
                continue
            if not arrivals.rate:
                continue
            window = starts[max(0, bisect_right(starts, arrivals.start) - 1)]
            rng = np.random.default_rng([seed, line])
            try:
                yield from _draw(line, arrivals, datasets[window], rng)
            except BadValueError as bad:
                yield BadRow(windows, f"line {line}", f"window {window} of {lengths.name}: {bad}")


def pair(path: Path) -> tuple[Path, Path]:
    """The dataset and the trace of a client, from the path of either.

    Raises:
        ConfigError: the name has no such ending, or the other file is not beside it.
    """
    match = _PAIR.fullmatch(path.name)
    if match is None:
        raise ConfigError(
            f"{path}: a ServeGen client is a pair, NAME-dataset.json and NAME-trace.csv; name the files so"
        )
    lengths, windows = (path.with_name(f"{match[1]}{match[2]}{ending}") for ending in ("dataset.json", "trace.csv"))
    for other in (lengths, windows):
        if not other.is_file():
            raise ConfigError(f"{path}: a ServeGen client is a pair of files; put {other.name} beside it")
    return lengths, windows


def _datasets(path: Path) -> Mapping[int, Mapping[str, str]]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: line {error.lineno}: broken JSON ({error.msg}); the file may be cut off") from None
    if not isinstance(record, dict) or not record or not all(str(key).isdecimal() for key in record):
        raise ConfigError(
            f"{path}: line 1: not an object of windows by their start in seconds; is it the dataset file?"
        )
    return {int(key): value for key, value in record.items()}


def _windows(path: Path) -> Iterator[tuple[int, Arrivals | BadRow]]:
    """Each line's window. All are as wide as the narrowest gap between two, so idle ones may be left out."""
    with path.open(encoding="utf-8", newline="") as text:
        lines = [(line, fields) for line, fields in enumerate(csv.reader(text), start=1) if fields]
    found: list[tuple[int, Arrivals | BadRow]] = []
    last = -math.inf
    for line, fields in lines:
        try:
            arrivals = _arrivals(fields)
            if arrivals.start <= last:
                raise BadValueError(f"window start {fields[0]} does not follow {last:g}")
            last = arrivals.start
            found.append((line, arrivals))
        except BadValueError as bad:
            found.append((line, BadRow(path, f"line {line}", str(bad))))
    starts = [arrivals.start for _, arrivals in found if isinstance(arrivals, Arrivals)]
    width = min((after - start for start, after in pairwise(starts)), default=WINDOW_SECONDS)
    for line, window in found:
        yield line, attrs.evolve(window, seconds=width) if isinstance(window, Arrivals) else window


def _arrivals(fields: list[str]) -> Arrivals:
    """The window of one line, with the last window's width."""
    if len(fields) < 6:
        raise BadValueError(f"{len(fields)} fields, where 6 should stand; the row may be cut off")
    start, rate, cv = (number(name, field) for name, field in zip(("start", "rate", "cv"), fields, strict=False))
    law = fields[3].strip() or ("Gamma" if cv else "Exponential")
    if rate > RATE_MAX:
        raise BadValueError(f"rate {rate:g} is more than {RATE_MAX:g} requests a second")
    if not rate:
        return Arrivals(start, 0.0, "Exponential", 1.0)
    if law not in LAWS:
        raise BadValueError(f"arrival law {law!r}; {nearest(law, LAWS)}")
    shape = 1.0 if law == "Exponential" else number("shape", fields[4])
    if law == "Gamma" and not shape and cv:
        shape = 1 / cv**2
    if not SHAPE_LEAST <= shape <= SHAPE_MOST:
        raise BadValueError(f"a {law} law of shape {shape:g}, outside {SHAPE_LEAST:g} to {SHAPE_MOST:g}")
    return Arrivals(start, rate, law, shape)


def _draw(line: int, arrivals: Arrivals, dataset: Mapping[str, str], rng: np.random.Generator) -> Iterator[TraceRow]:
    times = arrivals.draw(rng)
    prompts = _prompts(dataset, rng, len(times))
    outputs = _histogram(dataset, "output_tokens").draw(rng, len(times))
    if len(times) and min(prompts.min(), outputs.min()) < 1:
        raise BadValueError("its histograms give a length of 0; a request has at least 1 token")
    for arrival, prompt, output in zip(times.tolist(), prompts.tolist(), outputs.tolist(), strict=True):
        yield TraceRow(line, arrival, prompt, output)


def _prompts(dataset: Mapping[str, str], rng: np.random.Generator, count: int) -> Ints:
    if isinstance(dataset, dict) and "text_tokens" in dataset:
        prompts = _histogram(dataset, "text_tokens").draw(rng, count)
        for medium in _MEDIA:
            if f"{medium}_tokens" in dataset:
                copies = _histogram(dataset, f"{medium}_count").draw(rng, count)
                prompts = prompts + copies * _histogram(dataset, f"{medium}_tokens").draw(rng, count)
        return prompts
    return _histogram(dataset, "input_tokens").draw(rng, count)


def _histogram(dataset: Mapping[str, str], name: str) -> Histogram:
    try:
        counts = ast.literal_eval(member(dataset, name))
        values = np.array(list(counts.keys()), dtype=np.float64)
        shares = np.array(list(counts.values()), dtype=np.float64)
    except (ValueError, TypeError, SyntaxError, AttributeError, RecursionError, MemoryError):
        raise BadValueError(f"{name!r} is not a histogram such as '{{136: 0.25, 372: 0.75}}'") from None
    if not len(values) or not np.isfinite(shares).all() or shares.min() < 0 or shares.sum() <= 0:
        raise BadValueError(f"{name!r} is an empty histogram, while requests arrive in this window")
    if not np.isfinite(values).all() or values.min() < 0:
        raise BadValueError(f"{name!r} has a length {values.min():g}; lengths are whole numbers >= 0")
    return Histogram(np.rint(values).astype(np.int64), shares / shares.sum())
