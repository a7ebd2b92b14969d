"""Where settings stand is said with every mistake in them."""

import pytest

from kvarena.assembly.places import Places
from kvarena.terms.errors import PlanError


def test_a_setting_stands_in_a_file_or_is_an_option() -> None:
    """The option that stands for a key is named instead of it; without a file the key stands alone."""
    places = Places("q.toml", {"prefix.eviction": "--eviction"})
    assert places.place("arena.memory") == "q.toml: arena.memory"
    assert (places.place("prefix.eviction"), places.word("prefix.eviction")) == ("--eviction", "--eviction")
    assert (Places().place("arena.memory"), Places().word("arena.memory")) == ("arena.memory", "arena.memory")
    assert Places.of("q.toml") == Places("q.toml")
    assert Places.of(places) is places


@pytest.mark.parametrize(
    ("places", "setting", "says"),
    [
        (Places("q.toml"), "memory", "q.toml: arena.memory: too little"),
        (Places("q.toml"), "caps", "q.toml: arena.caps: too little"),
        (Places("q.toml"), None, "q.toml: too little"),
        (Places("q.toml", {"arena.memory": "--memory"}), "memory", "--memory: too little"),
        (Places("", {"arena.memory": "--memory"}), "owner", "arena.owner: too little"),
        (Places("", {"arena.memory": "--memory"}), None, "too little"),
        (Places(), "memory", "too little"),
    ],
)
def test_what_no_plan_holds_is_told_with_its_place(places: Places, setting: str | None, says: str) -> None:
    """Once: a message that begins with the setting's name does not repeat it; in a program it stays as it is."""
    words = "caps: too little" if setting == "caps" else "too little"
    with pytest.raises(PlanError) as caught, places.planning():
        raise PlanError(words, setting=setting)
    assert (str(caught.value), caught.value.setting) == (says, setting)
