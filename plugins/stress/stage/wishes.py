"""What requests that are still to start would begin with."""

from collections.abc import Callable

import attrs

from kvarena.plugins.prefix_tree import Entry as Landing
from kvarena.plugins.prefix_tree import Match, PrefixTree
from kvarena.plugins.stress.stage.keys import Keys
from kvarena.terms.errors import ConfigError


@attrs.define(eq=False)
class Wish:
    """What a request that is still to start would begin with. ``locked``: the landing that is kept for it."""

    keys: Keys
    prompt: int
    match: Match
    locked: Landing | None = None


class Wishes:
    """By the request's name."""

    def __init__(self, tree: Callable[[], PrefixTree]) -> None:
        self._tree = tree
        self.known: dict[str, Wish] = {}

    def make(self, keys: Keys, prompt: int) -> Wish:
        """What a request with these values, so many to forward, would begin with now."""
        return Wish(keys, prompt, self._tree().match(keys.first(prompt), namespace=keys.namespace))

    def look_again(self, wish: Wish, prompt: int | None = None) -> Match:
        """What it would begin with now; as it was found where that is locked."""
        prompt = wish.prompt if prompt is None else prompt
        if wish.locked is None:
            wish.match, wish.prompt = self.make(wish.keys, prompt).match, prompt
        elif wish.match.tokens >= prompt:
            raise ConfigError(f"{wish.match.tokens} tokens are locked for a prompt of {prompt}; match it again")
        return wish.match

    def drop(self, name: str) -> bool:
        """A request that has not started will not; whether there was one of this name."""
        wish = self.known.pop(name, None)
        if wish is not None and wish.locked is not None:
            self._tree().unlock(wish.locked)
        return wish is not None
