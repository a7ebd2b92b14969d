"""From names in a config to objects: a class is loaded by name and given the settings beside it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import attrs

from kvarena.assembly.catalog import KINDS, Catalog
from kvarena.assembly.config import Choice, PoliciesConfig, PrefixConfig, StorageConfig
from kvarena.assembly.places import Places
from kvarena.assembly.settings import Settings, settings_of
from kvarena.assembly.structuring import SettingError, structure
from kvarena.planning.declared import declared_fields
from kvarena.terms.errors import ConfigError, KvarenaError, MissingExtraError, PluginError, nearest
from kvarena.terms.fields import Layout
from kvarena.terms.layers import Layer, Part
from kvarena.terms.lifetimes import Lifetime
from kvarena.terms.owners import owner_of
from kvarena.terms.ports import Eviction, Policies


class _Sort(NamedTuple):
    """One sort of policy: what it has, and has not, that tells it from the others; and the word for one."""

    word: str
    has: str
    lacks: str = ""

    def fits(self, policy: Any) -> bool:
        return hasattr(policy, self.has) and not (self.lacks and hasattr(policy, self.lacks))


_ROLES: Mapping[str, _Sort] = {
    "policies.holes": _Sort("hole order", "open", lacks="splits"),
    "policies.compaction": _Sort("compaction policy", "moves"),
    "policies.placement": _Sort("placement policy", "start"),
    "prefix.eviction": _Sort("eviction policy", "splits"),
}
"""Each setting that names a policy, and the sort that it needs."""

LAYERS_MAX = 1 << 20

_PART_KEYS = ("index", "kind", "shares", "role", "tokens_per_entry", "layout", "lifetime")


def make(catalog: Catalog, kind: str, choice: Choice | str, place: str = "", *, places: Places | None = None) -> Any:
    """The object that a name stands for: the plugin's class called with the settings beside the name.

    ``place`` is where the choice was written, for messages (``quickstart.toml: backend``); or its key path among
    ``places``.

    Raises:
        ConfigError: a setting that the plugin does not have, or a value that it refuses.
        PluginError: no usable plugin has this name.
    """
    choice = Choice.of(choice)
    try:
        maker = catalog.load(kind, choice.name)
    except PluginError as error:
        where = places.place(place) if places is not None else place
        raise PluginError(f"{where}: {error}" if where else str(error)) from error
    if places is not None:
        return _made(maker, choice.settings, places, place)
    return _made(maker, choice.settings, Places(place or f"{KINDS[kind]} {choice.name!r}"), "")


def _made(maker: Any, settings: Mapping[str, Any], places: Places, at: str) -> Any:
    """The object; what its maker refuses is told with the place, and anything else that it raises with its owner."""
    try:
        return _called(maker, settings, places, at)
    except KvarenaError:
        raise
    except Exception as error:  # a stranger's class may raise anything
        owner = owner_of(maker) or maker
        raise PluginError(f"{places.place(at)}: {type(error).__name__}: {error} (in {owner})") from error


def _called(maker: Any, settings: Mapping[str, Any], places: Places, at: str) -> Any:
    if attrs.has(maker):
        return structure(maker, dict(settings), places, at=at)
    taken = _settings(maker, places.place(at))
    for key in settings:
        if not taken.takes(key):
            raise ConfigError(f"{places.place(f'{at}.{key}' if at else key)}: unknown key; {nearest(key, taken.known)}")
    try:
        return maker(**settings)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{places.place(at)}: {error}") from error


def check_backend(catalog: Catalog, choice: Choice, source: str | Places = "") -> None:
    """What making the backend would refuse of a config, as far as that can be told without making it.

    Raises:
        ConfigError: a setting that it does not have.
        PluginError: no usable backend has the name.
    """
    places = Places.of(source)
    try:
        maker = catalog.load("backends", choice.name)
    except MissingExtraError:
        return  # it is not to run here
    except PluginError as error:
        raise PluginError(f"{places.place('backend')}: {error}") from error
    taken = _settings(maker, places.place("backend"))
    for key in choice.settings:
        if not taken.takes(key):
            raise ConfigError(f"{places.place(f'backend.{key}')}: unknown key; {nearest(key, taken.known)}")


def _settings(maker: Any, place: str) -> Settings:
    try:
        return settings_of(maker)
    except PluginError as error:
        raise PluginError(f"{place}: {error}") from error


def default_settings(catalog: Catalog, kind: str, name: str) -> dict[str, Any]:
    """What a plugin takes for each setting that has a default; nothing of one that cannot be used here."""
    try:
        known = settings_of(catalog.load(kind, name)).known
    except KvarenaError:
        return {}
    return {setting.name: setting.default for setting in known.values() if setting.tells}


def fitting(catalog: Catalog, role: str) -> tuple[str, ...]:
    """The names of the policies that a setting (``policies.holes``) may name."""
    return tuple(_fit(catalog, _ROLES[role]))


def make_policies(catalog: Catalog, config: PoliciesConfig, source: str | Places = "") -> Policies:
    """The policies that ``[policies]`` names, each checked to be of the sort its setting needs.

    Raises:
        ConfigError: a policy of another sort, or a setting that it does not have.
        PluginError: no usable policy has the name.
    """
    made = [
        _policy(catalog, f"policies.{role}", getattr(config, role), source)
        for role in ("holes", "compaction", "placement")
    ]
    return Policies(*made)


def make_eviction(catalog: Catalog, config: PrefixConfig, source: str | Places = "") -> Eviction:
    """The policy that ``[prefix] eviction`` names: which entry of a prefix cache goes first.

    Raises:
        ConfigError: a policy of another sort, or a setting that it does not have.
        PluginError: no usable policy has the name.
    """
    policy: Eviction = _policy(catalog, "prefix.eviction", config.eviction, source)
    return policy


def check_eviction(catalog: Catalog, config: PrefixConfig, source: str | Places = "") -> None:
    """What ``make_eviction`` would refuse is refused before anything runs, also where it is named alone.

    Raises:
        ConfigError: a policy of another sort, or a setting that it does not have.
        PluginError: no usable policy has the name.
    """
    if config.share or config.eviction != PrefixConfig().eviction:
        make_eviction(catalog, config, source)


def _policy(catalog: Catalog, role: str, choice: Choice, source: str | Places) -> Any:
    """The policy that a setting names; for one that is none of its sort, those that are."""
    places, sort = Places.of(source), _ROLES[role]
    place = places.place(role)
    if not catalog.offers("policies", choice.name):
        cure = nearest(choice.name, _fit(catalog, sort))
        raise PluginError(f"{place}: no {KINDS['policies']} is named {choice.name!r}; {cure}")
    made = make(catalog, "policies", choice, role, places=places)
    if not sort.fits(made):
        lack = f"has no {sort.has!r}" if not hasattr(made, sort.has) else "is of another sort"
        fit = ", ".join(_fit(catalog, sort))
        raise ConfigError(f"{place}: {choice.name!r} is no {sort.word}, it {lack}; choose one of: {fit}")
    return made


def _fit(catalog: Catalog, sort: _Sort) -> list[str]:
    """The names of the policies of a sort."""
    return [name for name in catalog.names("policies") if sort.fits(_loaded(catalog, name))]


def _loaded(catalog: Catalog, name: str) -> Any:
    try:
        return catalog.load("policies", name)
    except KvarenaError:
        return None


def declared_layers(config: StorageConfig, catalog: Catalog, source: str | Places = "") -> tuple[Layer, ...]:
    """The layers that the ``[[layers]]`` tables of a config declare, in order of their index.

    A table has ``index`` (a layer, or a list of layers that are alike) and declares one part of it: a
    ``layout`` and a ``lifetime`` by name, the settings of both, ``role`` (default ``kv``, or ``state`` for a
    lifetime with slots) and ``tokens_per_entry``. Tables of one index add up. ``shares = 3`` instead of a
    layout reads the memory of layer 3; ``kind`` is a word for people.

    Raises:
        ConfigError: an unknown or missing key, with its path and the nearest valid choice.
        PluginError: no usable layout or lifetime has the name.
    """
    parts: dict[int, list[Part]] = {}
    kinds: dict[int, str] = {}
    shares: dict[int, int] = {}
    for position, table in enumerate(config.layers):
        place = _Table(Places.of(source), f"layers[{position}]")
        own = {key: table[key] for key in table if key in _PART_KEYS}
        layer = structure(LayerTable, own, place.places, at=place.at)
        part = _part(table, layer, catalog, place)
        for index in layer.indices:
            parts.setdefault(index, []).extend([part] if part else [])
            kinds.setdefault(index, layer.kind or (f"{part.lifetime.name}" if part else "none"))
            if layer.shares is not None:
                shares[index] = layer.shares
    return tuple(
        Layer(index, tuple(parts[index]), kind=kinds[index], shares=shares.get(index)) for index in sorted(parts)
    )


@attrs.frozen
class LayerTable:
    """The keys of a ``[[layers]]`` table that are neither the layout's nor the lifetime's."""

    index: int | tuple[int, ...] = attrs.field()
    layout: str | None = None
    lifetime: str = "full"
    role: str | None = None
    tokens_per_entry: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    kind: str | None = None
    shares: int | None = None

    @index.validator
    def _index_is_sane(self, _: object, index: int | tuple[int, ...]) -> None:
        if not self.indices:
            raise SettingError("index", "names no layer")
        if min(self.indices) < 0:
            raise SettingError("index", f"must be >= 0: {min(self.indices)}")
        if max(self.indices) >= LAYERS_MAX:
            raise SettingError("index", f"{max(self.indices):,} is absurd; at most {LAYERS_MAX - 1:,}")

    @property
    def indices(self) -> tuple[int, ...]:
        """The layers that the table is about."""
        return (self.index,) if isinstance(self.index, int) else self.index


class _Table(NamedTuple):
    """One table of ``[[layers]]``, by its key path, and where it stands."""

    places: Places
    at: str

    def place(self, key: str = "") -> str:
        return self.places.place(f"{self.at}.{key}" if key else self.at)


def _part(table: Mapping[str, Any], layer: LayerTable, catalog: Catalog, place: _Table) -> Part | None:
    """The part that a table declares; its free keys are shared out between layout and lifetime."""
    free = {key: value for key, value in table.items() if key not in _PART_KEYS}
    if layer.layout is None:
        for key in free:
            raise ConfigError(f"{place.place(key)}: a setting without a layout; name one (layout = ...)")
        return None
    layout_maker = _load(catalog, "layouts", layer.layout, place)
    lifetime_maker = _load(catalog, "lifetimes", layer.lifetime, place)
    ours, theirs = (_settings(maker, place.place()).known for maker in (layout_maker, lifetime_maker))
    for key in free:
        if key not in ours and key not in theirs:
            raise ConfigError(f"{place.place(key)}: unknown key; {nearest(key, [*_PART_KEYS, *ours, *theirs])}")
    layout: Layout = _made(layout_maker, {key: free[key] for key in free if key in ours}, place.places, place.at)
    try:
        declared_fields(layout)  # asked here, where its place is known; planning asks again
    except PluginError as error:
        raise PluginError(f"{place.place()}: {error}") from error
    lifetime: Lifetime = _made(
        lifetime_maker, {key: free[key] for key in free if key in theirs}, place.places, place.at
    )
    role = layer.role or ("state" if lifetime.own_ids else "kv")
    return Part(layout, lifetime, role=role, tokens_per_entry=layer.tokens_per_entry)


def _load(catalog: Catalog, kind: str, name: str, place: _Table) -> Any:
    try:
        return catalog.load(kind, name)
    except PluginError as error:
        raise PluginError(f"{place.place(KINDS[kind])}: {error}") from error
