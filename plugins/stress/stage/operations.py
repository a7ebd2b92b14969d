"""The vocabulary of operations: what a scenario file, a harness case, a replay file and a trace all speak.

An operation is a verb and its arguments, plain values as TOML has them. ``VERBS`` is the whole list, in the order of a
request's day; ``read_operation`` is the door that refuses what is not in it.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from kvarena.plugins.stress.stage.kinds import (
    AMOUNT,
    COUNT,
    COUNTS,
    FLAG,
    LENGTHS,
    NAME,
    NAMES,
    NATURAL,
    NUMBER,
    PIECES,
    POSITIONS,
    PROMPT,
    REQUIRED,
    TABLE,
    TOKENS,
    UNITS,
    Argument,
    Kind,
    Verb,
)  # fmt: skip
from kvarena.terms.errors import ConfigError, KvarenaError, nearest


class AwaitsError(KvarenaError):
    """The operation needs a capability that this version does not have yet; says which."""

    def __init__(self, capability: str) -> None:
        super().__init__(f"awaits {capability}")
        self.capability = capability


class Op(NamedTuple):
    """One operation. ``line``: where it stands in its file; 0 where it comes from no file."""

    verb: str
    arguments: Mapping[str, Any]
    line: int = 0

    def __str__(self) -> str:
        return " ".join([self.verb, *(f"{name}={value!r}" for name, value in self.arguments.items())])


def _must(name: str, kind: Kind, doc: str) -> Argument:
    return Argument(name, kind, REQUIRED, doc)


def _may(name: str, kind: Kind, default: Any, doc: str) -> Argument:
    return Argument(name, kind, default, doc)


_REQUEST = _must("request", NAME, "the request")
_FORWARD = _must("forward", NAME, "the forward")
_COPY = _must("copy", NAME, "the copy")
_TRANSFER = _must("transfer", NAME, "the transfer")
_ENTRY = _must("entry", NAME, "the entry of the cache")
_SUB_POOL = _may("sub_pool", NAME, "", "one sub-pool; all where none is named")

_PLANNING = (
    Verb(
        "plan", "plan a model or declared layers; answers with names, owner and the bytes of each sub-pool",
        (
            _may("tp", NATURAL, 1, "tensor-parallel ranks"),
            _may("dtype", NAME, "", "of keys and values"),
            _may("page_tokens", NATURAL, 0, "tokens a page; the chain's where 0"),
            _may("owner", NAME, "any", "any or required"),
            _may("model", NAME, "", "one of [chain.models]; the only one where none is named"),
            _may("layers", NAME, "all", "all, recurrent (those with a state alone) or reversed"),
        ),
    ),
    Verb(
        "size", "solve a budget for the planned layers",
        (
            _must("memory", AMOUNT, "the budget"),
            _may("model", NAME, "", "one of [chain.models]"),
            _may("tp", NATURAL, 1, "tensor-parallel ranks"),
            _may("state_slots", NATURAL, 0, "state slots; solved for where 0"),
            _may("slots_per_request", NATURAL, 1, "state slots of one request"),
            _may("scratch_slots_per_request", NATURAL, 0, "draft slots of one request"),
            _may("context", NATURAL, 0, "the longest request; the chain's where 0"),
            _may("mirrors", FLAG, False, "charge the device's copies of the maps"),
        ),
    ),
)  # fmt: skip

_REQUESTS = (
    Verb(
        "take", "open a request if it is not, and take rows for it; with units, hold units that are no request's",
        (
            _REQUEST,
            _may("rows", NATURAL, 0, "so many rows more than it has"),
            _may("units", UNITS, None, "units by sub-pool, held under the name without a request row"),
            _may("write", FLAG, False, "write the new rows by hand at once"),
            _may("shares", LENGTHS, None, "so many of its first tokens are those of a request or an entry"),
        ),
    ),
    Verb("extend", "take rows for requests up to these lengths, all or nothing", (_must("to", LENGTHS, "lengths"),)),
    Verb("advance", "let the rows that no later query needs retire", (_must("requests", NAMES, "whose"),)),
    Verb(
        "free", "give back a request's last rows, or units that are held under its name",
        (_REQUEST, _may("pieces", PIECES, None, "pieces of rows that end at its length; all of it where none")),
    ),
    Verb(
        "finish", "give back all that a request holds",
        (
            _REQUEST,
            _may("entry", NAME, "", "hand its whole pages to the cache under this name first"),
            _may("tokens", COUNT, -1, "so many of its rows to the cache; all whole pages where -1"),
            _may("state", FLAG, False, "with its state, which is that after its last row"),
        ),
    ),
    Verb(
        "abort", "a request ends at once, whatever runs on its pages, or before it has started; a receive goes on",
        (_REQUEST,),
    ),
    Verb("retract", "a running request gives back all that it holds, to start again later", (_REQUEST,)),
    Verb(
        "write", "write tags into rows or slots by hand, after all that is queued",
        (
            _REQUEST,
            _may("rows", COUNTS, None, "these rows; all where none"),
            _may("sub_pool", NAME, "", "one sub-pool; all where none is named"),
            _may("pattern", NATURAL, 0, "this 32-bit word all over instead of tags"),
            _may("value", NUMBER, None, "this bfloat16 value all over instead of tags"),
        ),
    ),
    Verb(
        "read", "read rows or slots back: ok, the sink, or what is wrong",
        (
            _REQUEST,
            _may("rows", COUNTS, None, "these rows; all that are bound where none"),
            _SUB_POOL,
            _may("whole", FLAG, False, "whole pages as bfloat16: rows by value, and the sum"),
        ),
    ),
    Verb("pages", "the physical pages of a request, by sub-pool", (_REQUEST, _SUB_POOL)),
)  # fmt: skip

_QUESTIONS = (
    Verb(
        "fits", "the capacity question, without taking",
        (_must("units", UNITS, "by sub-pool"), _may("evict", FLAG, False, "after the cache has given all back")),
    ),
    Verb(
        "demand", "what a request is charged, by sub-pool; or a window's peak",
        (
            _may("prompt", PROMPT, 1, "tokens to forward"),
            _may("output", TOKENS, 1, "tokens to generate"),
            _may("chunk", TOKENS, 0, "the prefill chunk; the chain's where 0"),
            _may("cached", TOKENS, 0, "so many of the prompt are in the cache"),
            _may("window", TOKENS, 0, "a window of its own: answers with its peak in pages"),
            _may("page_tokens", TOKENS, 0, "with window: tokens a page"),
        ),
    ),
    Verb(
        "admit",
        "may this request start, from what it was matched with? yes, wait or never; with yes its charge is held back "
        "until it is taken, and what it matched is locked",
        (
            _REQUEST,
            _must("prompt", PROMPT, "tokens to forward"),
            _may("output", TOKENS, 1, "tokens to generate"),
            _may("clip", FLAG, False, "to less output where only that could ever be served"),
        ),
    ),
    Verb("counts", "exact counts by sub-pool, with free: how many units a take would get", (_SUB_POOL,)),
    Verb("estimates", "the scalars that decide nothing: units by sub-pool", ()),
    Verb("maps", "ids and the length of the map, by sub-pool", ()),
    Verb("quiet", "nothing is held by anybody, after one flush; answers with what is", ()),
)  # fmt: skip

_CACHE = (
    Verb(
        "cache", "hand a request's first rows to the cache; it goes on reading them",
        (_REQUEST, _ENTRY, _may("tokens", COUNT, -1, "so many rows; all whole pages where -1")),
    ),
    Verb(
        "match", "what a request that is still to start would start from; its values are kept until it starts",
        (
            _REQUEST,
            _may("shares", LENGTHS, None, "so many of its first tokens are those of a request or an entry"),
            _may("prompt", TOKENS, 0, "tokens to forward, one more than it shares where 0"),
            _may("lock", FLAG, False, "keep what is found until it starts or is aborted"),
            _may("namespace", NAME, None, "where it is looked for; that of what it shares by default"),
        ),
    ),
    Verb("start", "a matched request has a row, reads what was found and has a copy of its state", (_REQUEST,)),
    Verb("spare", "a slot beside its own for a request's next checkpoint: held or skipped", (_REQUEST,)),
    Verb(
        "checkpoint", "offer a request's state at a grid point to the cache: cached, taken or skipped",
        (
            _REQUEST,
            _ENTRY,
            _may("forward", NAME, "", "copy it behind the kernels of this open forward, and cache it afterwards"),
        ),
    ),
    Verb("narrow", "a request needs of what it reads only what its next queries need", (_REQUEST,)),
    Verb("relax", "a request has moved past the windows and the state of what it reads", (_REQUEST,)),
    Verb("lock", "keep an entry from being evicted", (_ENTRY,)),
    Verb("unlock", "let it go again", (_ENTRY,)),
    Verb(
        "evict", "give back one entry, or what goes first: the names of what is gone",
        (
            _may("entry", NAME, "", "this entry"),
            _may("pieces", NATURAL, 1, "so many pieces; all that may go where 0"),
        ),
    ),
    Verb("entries", "the names of all entries, the oldest first", ()),
)  # fmt: skip

_FORWARDS = (
    Verb(
        "launch", "a forward begins: its ids are read now",
        (
            _FORWARD,
            _may("requests", NAMES, (), "whose rows and slots it reads"),
            _may("writes", POSITIONS, None, "rows that it writes, by request; those not written yet where none"),
            _may("units", NAMES, (), "units held by name that it reads"),
        ),
    ),
    Verb("run", "put the forward's work on its stream", (_FORWARD,)),
    Verb(
        "record", "all work of the forward is on its stream (put there now, if run was not said)",
        (
            _FORWARD,
            _may("unknown", FLAG, False, "nobody says what it writes"),
        ),
    ),
    Verb(
        "process", "the forward is over, for the scheduler too",
        (_FORWARD, _may("wait", FLAG, True, "wait for its end on the host first")),
    ),
    Verb(
        "step", "extend, launch and record as one",
        (
            _FORWARD,
            _must("requests", NAMES, "who is in the batch"),
            _may("rows", NATURAL, 1, "so many rows more of each"),
        ),
    ),
    Verb("prebuilt", "a step without a forward is launched, recorded and processed", ()),
    Verb("barrier", "a stream of an engine waits for the forwards", (_may("stream", NAME, "engine", "its name"),)),
    Verb("land", "device time: the named forward, copy or transfer happens now", (_must("name", NAME, "which"),)),
    Verb("turn", "device time: the adversary lands what it likes", (_may("limit", NATURAL, 0, "at most; 0: any"),)),
)  # fmt: skip

_DRAFTS = (
    Verb("reserve", "rows for drafts: lengths that may be reached", (_must("to", LENGTHS, "the maximal lengths"),)),
    Verb("commit", "of the rows reserved, these lengths are kept", (_must("to", LENGTHS, "the lengths"),)),
)

_COPIES = (
    Verb(
        "backup", "a host copy of a request's or an entry's pages is made ready",
        (_COPY, _may("request", NAME, "", "whose"), _may("entry", NAME, "", "which")),
    ),
    Verb(
        "load", "pages for a load from the host are taken, for a request without rows, new or not",
        (_COPY, _REQUEST, _must("rows", NATURAL, "so many rows"), _may("source", NAME, "", "a copy that was saved")),
    ),
    Verb(
        "name", "a load's pages may move from here on, its ids name them; how many pages",
        (_COPY, _may("sub_pool", NAME, "", "of one sub-pool; of each that has not been named where none is")),
    ),
    Verb("submit", "the copy goes on its stream", (_COPY,)),
    Verb("cancel", "a copy that is not submitted is given up; a load's request has no rows again", (_COPY,)),
    Verb("capture", "device time: the backup reads now", (_COPY,)),
    Verb("fill", "device time: the load writes now", (_COPY,)),
    Verb("end", "the copy is over", (_COPY, _may("wait", FLAG, True, "wait for its end on the host first"))),
    Verb(
        "copy_state", "copy the state slots of one request to another's",
        (
            _must("source", NAME, "from"),
            _must("target", NAME, "to"),
            _may("forward", NAME, "", "behind the kernels of this open forward"),
        ),
    ),
)  # fmt: skip

_TRANSFERS = (
    Verb("send", "a transfer engine reads a request's pages from now on", (_TRANSFER, _REQUEST)),
    Verb(
        "recv", "pages for a receive are taken, for a request without rows, new or not",
        (_TRANSFER, _REQUEST, _must("rows", NATURAL, "so many rows")),
    ),
    Verb("publish", "the peer learns the ids", (_TRANSFER,)),
    Verb(
        "peer_write", "the peer writes rows of a receive as soon as it may",
        (_TRANSFER, _may("rows", COUNTS, None, "these rows; all where none")),
    ),
    Verb(
        "release", "the transfer is proven over",
        (_TRANSFER, _may("wait", FLAG, True, "wait for the engine on the host first; else it is a deadline")),
    ),
)  # fmt: skip

_STAGES = (
    _may("split", COUNTS, (), "layers of each stage"),
    _may("page_tokens", COUNTS, (), "tokens a page on each stage"),
    _may("units", UNITS, None, "the capacity question, asked on all of them"),
)

_ARENA = (
    Verb("flush", "close holes as far as the policy says: pages moved", ()),
    Verb("relief", "rearrange as for a take, which is given back", (_must("units", UNITS, "by sub-pool"),)),
    Verb("resize", "another budget, when nothing is open", (_must("memory", AMOUNT, "the budget"),)),
    Verb("stages", "one answer for all stages", _STAGES, awaits="pipeline stages"),
    Verb(
        "repeat", "steps again and again (in scenario files)",
        (_must("times", COUNT, "how often"), _must("steps", Kind("a list of tables", (list, tuple), TABLE), "which")),
    ),
)  # fmt: skip

VERBS: Mapping[str, Verb] = {
    verb.name: verb
    for group in (_PLANNING, _REQUESTS, _QUESTIONS, _CACHE, _FORWARDS, _DRAFTS, _COPIES, _TRANSFERS, _ARENA)
    for verb in group
}


def read_operation(verb: str, arguments: Mapping[str, Any], place: str, line: int = 0) -> Op:
    """An operation, checked; ``place`` stands before the message: a file and line, say.

    Raises:
        ConfigError: no such verb or argument, one is missing, or a value is of another kind.
    """
    known = VERBS.get(verb) if isinstance(verb, str) else None
    if known is None:
        raise ConfigError(f"{place}: there is no operation {str(verb)[:60]!r}; {nearest(str(verb), VERBS)}")
    names = {argument.name: argument for argument in known.arguments}
    for name, value in arguments.items():
        argument = names.get(name)
        if argument is None:
            choices = nearest(name, names) if names else "it has none"
            raise ConfigError(f"{place}: {verb} has no argument {name!r}; {choices}")
        if not argument.kind.holds(value):
            raise ConfigError(f"{place}: {verb}: {name} must be {argument.kind.words}, not {str(value)[:60]!r}")
    missing = [name for name, argument in names.items() if argument.default is REQUIRED and name not in arguments]
    if missing:
        raise ConfigError(f"{place}: {verb} needs {missing[0]}: {names[missing[0]].doc}")
    return Op(verb, dict(arguments), line)
