"""A hybrid model in whole numbers, for examples/engine.py: a state, a window of 12 tokens, full attention.

Whole numbers in float32 add up to the same bits in any order, so an arena's answers can be compared to the last token.
"""

import numpy as np

from kvarena import ConfigError

WINDOW, WIDTH, WORDS, END = 12, 8, 64, 0
KEYS, VALUES, QUERIES = np.random.default_rng(0).integers(-2, 3, (3, WORDS, WIDTH)).astype(np.float32)


class Request:
    """A prompt, and room for what comes behind it: forwards write ``tokens``, the host reads the first ``known``."""

    def __init__(self, name, prompt, output):
        self.name, self.fate, self.cached, self.retracted = name, "new", 0, 0
        self.tokens = np.array([*prompt, *[END] * output])
        self.prompt, self.known, self.rows = len(prompt), len(prompt), len(prompt) + output - 1

    @property
    def answer(self):
        """The tokens that came out, as far as the host has seen them."""
        return self.tokens[self.prompt : self.known].tolist()


def absorb(state, tokens):
    """The recurrent layer: its state after more tokens."""
    for token in tokens:
        state = (3 * state + VALUES[token]) % 97
    return state


def next_word(state, last, seen):
    """The next token, from the state, the last token, and the keys and values that each attention layer sees."""
    mixed = state + sum((keys @ QUERIES[last]) @ values for keys, values in seen)
    return int(mixed @ np.arange(1, WIDTH + 1)) % WORDS


def forward(states, layers, request, start, stop, slot, *tables):
    """A request's tokens ``[start, stop)``: write their keys and values, read all; behind its prompt, the next token.

    ``layers`` has the views of keys and values, (pages, tokens of a page, heads, width), ``tables`` the page at each
    page position, of the window and of full attention.
    """
    tokens, seen, new = request.tokens, [], np.arange(start, stop)
    states[slot, 0] = absorb(states[slot, 0], tokens[new])
    for (keys, values), table, reach in zip(layers, tables, (WINDOW, stop), strict=True):
        page = keys.shape[1]
        at = table[new // page], new % page, 0
        keys[at], values[at] = KEYS[tokens[new]], VALUES[tokens[new]]
        old = np.arange(max(0, stop - reach), stop)
        at = table[old // page], old % page, 0
        seen.append((keys[at], values[at]))
    if stop >= request.prompt:
        tokens[stop] = next_word(states[slot, 0], tokens[stop - 1], seen)


def checked(config):
    """The config as it is, if this model and its engine can run on it."""
    layers = [(table.get("layout"), table.get("lifetime", "full"), table.get("window")) for table in config.layers]
    shapes = [(table.get("kv_heads"), table.get("head_dim"), table.get("dtype")) for table in config.layers[1:]]
    needs = {
        "backend": (config.backend.name, "cpu"),
        "prefix.share": (config.prefix.share, True),
        "prefix.strategy": (config.prefix.strategy.removesuffix("_lazy"), "extra_buffer"),
        "layers": (layers, [("tensors", "state", None), ("mha", "window", WINDOW), ("mha", "full", None)]),
        "layers: kv_heads, head_dim, dtype": (shapes, [(1, WIDTH, "float32")] * 2),
    }
    for key, (found, needed) in needs.items():
        if found != needed:
            raise ConfigError(f"engine.toml: {key}: this example needs {needed}, not {found}")
    return config


def plain(prompt, output):
    """The answer without an arena: everything is computed anew for each token."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + output and (len(tokens) == len(prompt) or tokens[-1] != END):
        seen = [(KEYS[part], VALUES[part]) for part in (tokens[-WINDOW:], tokens)]
        tokens.append(next_word(absorb(np.zeros(WIDTH, np.float32), tokens), tokens[-1], seen))
    return tokens[len(prompt) :]


def traffic():
    """Two system prompts, ten requests, and one that no arena of this size could hold."""
    draw = np.random.default_rng(1)
    systems = draw.integers(1, WORDS, (2, 32)).tolist()
    lengths = draw.integers(4, 24, (10, 2)).tolist()
    requests = [
        Request(f"r{number}", systems[number % 2] + draw.integers(1, WORDS, prompt).tolist(), output)
        for number, (prompt, output) in enumerate(lengths)
    ]
    return [*requests, Request("too long", systems[0] * 2 + systems[1], 40)]
