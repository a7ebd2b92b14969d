"""The pieces that a stranger's policy keeps, with its failures named.

A policy that raises is told as its own fault. Those that come with kvarena are proved by their own tests, and go
unguarded. What ``pop`` chose is looked at by the shelf, which knows the pieces.
"""

from collections.abc import Callable
from typing import Any

from kvarena.terms.owners import MISHAPS, misbehaves, raising
from kvarena.terms.ports import Eviction, Piece, Victims

OWN = "kvarena.policies."
_KIND = "eviction policy"
_VERBS = ("__len__", "add", "touch", "remove", "pop")


def open_victims(policy: Eviction) -> Victims:
    """The victims of a new cache, as the policy keeps them, guarded where it is a stranger's.

    Raises:
        PluginError: the policy fails, or opens something else, or does not say whether it splits.
    """
    victims = _answer(policy, policy.open, "open()")
    if type(victims).__module__.startswith(OWN):
        return victims  # type: ignore[no-any-return]
    lacking = [verb for verb in _VERBS if not hasattr(victims, verb)]
    if lacking:
        finding = f"open() returned {victims!r}, which has no {lacking[0]!r}"
        raise misbehaves("prefix_tree.policy_is_incomplete", _KIND, policy, finding)
    flags = {
        "splits": _answer(policy, lambda: policy.splits, "splits"),
        "weighs": _answer(policy, lambda: getattr(policy, "weighs", True), "weighs"),
    }
    for flag, said in flags.items():
        if not isinstance(said, bool):
            finding = f"its {flag} is {said!r}; it must be True or False"
            raise misbehaves("prefix_tree.policy_is_incomplete", _KIND, policy, finding)
    return GuardedVictims(policy, victims)


class GuardedVictims:
    """The policy's victims; where a call fails, the error says whose it is and what was asked."""

    def __init__(self, policy: Eviction, victims: Victims) -> None:
        self._policy = policy
        self._victims = victims

    def __len__(self) -> int:
        count: int = _answer(self._policy, lambda: len(self._victims), "len()")
        return count

    def add(self, key: int, piece: Piece) -> None:
        """This piece may go from here on.

        Raises:
            PluginError: the policy fails.
        """
        _answer(self._policy, lambda: self._victims.add(key, piece), f"add({key})")

    def touch(self, key: int, piece: Piece, *, used: bool) -> None:
        """What is known of a piece has changed.

        Raises:
            PluginError: the policy fails.
        """
        _answer(self._policy, lambda: self._victims.touch(key, piece, used=used), f"touch({key}, used={used})")

    def remove(self, key: int) -> None:
        """This piece may not go, or has gone with another.

        Raises:
            PluginError: the policy fails.
        """
        _answer(self._policy, lambda: self._victims.remove(key), f"remove({key})")

    def pop(self, look: Callable[[int], Piece] | None) -> int | None:
        """Remove and return the piece that goes first; None where there is none.

        Raises:
            PluginError: the policy fails.
        """
        key: int | None = _answer(self._policy, lambda: self._victims.pop(look), "pop()")
        return key


def _answer(policy: Eviction, ask: Callable[[], Any], asked: str) -> Any:
    """What the policy says, or the error for one that cannot tell."""
    try:
        return ask()
    except MISHAPS as error:
        finding = raising(asked, error)
        raise misbehaves("prefix_tree.policy_raised", _KIND, policy, finding) from error
