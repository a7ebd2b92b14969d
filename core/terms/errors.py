"""The two families of exceptions. A refusal is neither: it is a value (see ``answers``)."""

import difflib
from collections.abc import Iterable


class KvarenaError(Exception):
    """Something a user can mend: wrong input, a missing package, a plugin that fails.

    The message is whole: the place, what was found, what to do. Commands print it and exit with 2.
    """


class ConfigError(KvarenaError):
    """A config, model, trace or command line that says something impossible, with its place."""


class PlanError(ConfigError):
    """Layers or a budget that no arena can hold; the message names the layers or sums the terms.

    ``setting``: the one of ``[arena]`` that it is about, where it is about one; None where it is about the layers.
    """

    def __init__(self, message: str, *, setting: str | None = None) -> None:
        super().__init__(message)
        self.setting = setting


class PluginError(KvarenaError):
    """A plugin is missing, broken, or offers what another already offers; names the distribution."""


class MissingExtraError(KvarenaError):
    """A package of an optional extra is not installed; the message has the command that installs it."""

    def __init__(self, need: str, extra: str) -> None:
        super().__init__(f"{need} is needed here and is not installed; run: pip install 'kvarena[{extra}]'")


class InvariantError(Exception):
    """A named promise is broken, by kvarena or by who calls it. Never a value; the idle checks alone catch it."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error message about an unknown name: the nearest valid choice, or all of them."""
    choices = sorted(known)
    close = difflib.get_close_matches(name, choices, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"choose one of: {', '.join(choices)}" if choices else "none is installed"
