"""What tokens each page and state in the cache was computed from, so that nobody starts from another's."""

from collections.abc import Sequence

from kvarena.plugins.prefix_tree import Match
from kvarena.plugins.stress.stage.keys import Keys
from kvarena.plugins.stress.stage.props import Finding, Props
from kvarena.terms.numbers import UNBOUND
from kvarena.terms.ports import IntArray

OTHER_TOKENS = "other_tokens"


class Told:
    """By the id of a page or a slot: a number that tells all tokens up to its end."""

    def __init__(self, props: Props) -> None:
        self._props = props
        self._pages: dict[int, int] = {}
        self._states: dict[int, int] = {}

    def clear(self) -> None:
        """Nothing is in the cache."""
        self._pages.clear()
        self._states.clear()

    def pages(self, keys: Keys, ids: IntArray, were_there: Sequence[bool]) -> None:
        """These pages have these tokens; of those that were in the cache before that is known already."""
        spelled = self._spelled(keys, len(ids))
        for id_, value, was_there in zip(ids.tolist(), spelled, were_there, strict=True):
            if was_there and id_ != UNBOUND and self._pages.get(id_) != value:
                words = f"page id {id_} is read for tokens that it was not computed from"
                self._props.findings.append(Finding(OTHER_TOKENS, words))
            self._pages[id_] = value

    def state(self, keys: Keys, pages: int, slot: int) -> None:
        """A slot has the state after so many pages of these tokens."""
        self._states[slot] = self._spelled(keys, pages)[-1]

    def check(self, who: str, keys: Keys, match: Match) -> None:
        """What a request is about to start from was computed from its own first tokens."""
        ids, spelled = match.ids.tolist(), self._spelled(keys, len(match.ids))
        wrong = [at for at, id_ in enumerate(ids) if id_ != UNBOUND and self._pages.get(id_) != spelled[at]]
        if match.state is not None and spelled and self._states.get(match.state) != spelled[-1]:
            wrong.append(len(ids))
        if wrong:
            what = f"page {wrong[0]}" if wrong[0] < len(ids) else "the state"
            words = f"{who} starts from {match.tokens} tokens, and {what} was computed from others"
            self._props.findings.append(Finding(OTHER_TOKENS, words))

    def _spelled(self, keys: Keys, pages: int) -> list[int]:
        return keys.spelled(pages, self._props.maps.paging.tokens)
