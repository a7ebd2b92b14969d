"""Which plugins are installed, by kind and name: metadata for listing, one import for a name asked for.

A plugin's life here:  1. found     an entry point of group ``kvarena.<kind>`` is read; nothing is imported.
                       2. asked for  its module is imported once; what it offers is handed out from then on.
                       3. refused    it is a duplicate, disabled, of another API, or fails to import: the reason is
                                     kept, and raised whenever its name is asked for. Others are not touched.
"""

import importlib
import os
import re
import sys
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any
from urllib.parse import unquote, urlsplit

import attrs
import importlib_metadata

from kvarena.assembly.config import PluginsConfig
from kvarena.assembly.places import Places
from kvarena.terms.errors import ConfigError, KvarenaError, MissingExtraError, PluginError, nearest
from kvarena.terms.marks import API_VERSION
from kvarena.terms.offers import OWN, Survey, survey

KINDS: Mapping[str, str] = {
    "layouts": "layout",
    "lifetimes": "lifetime",
    "backends": "backend",
    "policies": "policy",
    "models": "model reader",
    "tiers": "tier",
    "transfers": "transfer",
    "commands": "command",
    "plugins": "hook plugin",
}
"""Each kind, and the word for one of it; the entry-point group of a kind is ``kvarena.<kind>``."""

NO_AUTOLOAD = "KVARENA_DISABLE_PLUGIN_AUTOLOAD"


@attrs.frozen(order=True)
class Entry:
    """One offer: what a distribution's metadata says, before anything is imported.

    ``target`` is ``module:attribute``. ``extras`` are the optional extras that the entry point names;
    ``requires`` the distribution's requirements, read to name the extra that brings a missing package. ``fault`` says
    why the entry point itself is broken; it is empty where that may be imported.
    """

    kind: str
    name: str
    distribution: str
    version: str
    target: str
    extras: tuple[str, ...] = ()
    requires: tuple[str, ...] = attrs.field(default=(), repr=False, eq=False)
    fault: str = ""

    @property
    def module(self) -> str:
        """The module that is imported when the name is asked for."""
        return self.target.partition(":")[0]

    @property
    def words(self) -> tuple[str, ...]:
        """What ``[plugins]`` may call it: its name, ``kind:name``, its distribution."""
        return (self.name, f"{self.kind}:{self.name}", self.distribution)

    def __str__(self) -> str:
        return f"{KINDS[self.kind]} {self.name!r} ({self.distribution} {self.version})"


class Catalog:
    """What can be asked for by kind and name. Loads on demand, remembers what it loaded and what failed."""

    def __init__(
        self,
        entries: Iterable[Entry],
        plugins: PluginsConfig | None = None,
        *,
        autoload: bool = True,
        source: str | Places = "",
        faults: Iterable[str] = (),
    ) -> None:
        self.faults = tuple(faults)
        """A line for each installed distribution whose offers cannot be read, or that has kvarena's own name."""
        self._entries = tuple(sorted(entries))
        self._plugins = plugins or PluginsConfig()
        self._autoload = autoload
        self._loaded: dict[Entry, Any] = {}
        self._refusals: dict[Entry, KvarenaError] = {}
        self._check_words(Places.of(source))

    @classmethod
    def installed(cls, plugins: PluginsConfig | None = None, *, source: str | Places = "") -> "Catalog":
        """The catalog of this environment, from the metadata of all installed distributions.

        ``source`` names the file of ``[plugins]`` in messages.

        Raises:
            ConfigError: ``[plugins]`` names what is not there.
        """
        off = os.environ.get(NO_AUTOLOAD, "").strip().lower() not in ("", "0", "false", "no")
        found = survey()
        return cls(installed_entries(found), plugins, autoload=not off, source=source, faults=found.faults)

    def under(self, plugins: PluginsConfig, *, source: str | Places = "") -> "Catalog":
        """The same offers under the ``[plugins]`` of a file.

        Raises:
            ConfigError: ``[plugins]`` names what is not there.
        """
        return Catalog(self._entries, plugins, autoload=self._autoload, source=source, faults=self.faults)

    def entries(self, kind: str | None = None) -> tuple[Entry, ...]:
        """What may be asked for, by kind and name; duplicates are all listed, disabled ones are not."""
        return tuple(entry for entry in self._entries if kind in (None, entry.kind) and self._why_not(entry) is None)

    def names(self, kind: str) -> tuple[str, ...]:
        """The names of one kind, sorted."""
        return tuple(sorted({entry.name for entry in self.entries(kind)}))

    def offers(self, kind: str, name: str) -> bool:
        """Whether any plugin has this name, usable or not."""
        return any((entry.kind, entry.name) == (kind, name) for entry in self._entries)

    def load(self, kind: str, name: str) -> Any:
        """What the plugin offers under this name: a class or a function, imported now if not before.

        Raises:
            PluginError: no plugin has the name, two have, it is left out by ``[plugins]``, or it is broken.
            MissingExtraError: it needs a package of an optional extra.
        """
        return self._load(self.find(kind, name))

    def _load(self, entry: Entry) -> Any:
        if entry.fault:
            raise PluginError(f"{entry}: its entry point is broken: {entry.fault}; tell its author, or uninstall it")
        if entry in self._refusals:
            raise self._refusals[entry]
        if entry not in self._loaded:
            try:
                self._loaded[entry] = _import(entry)
            except KvarenaError as refusal:
                self._refusals[entry] = refusal
                raise
        return self._loaded[entry]

    def refusal(self, entry: Entry) -> KvarenaError | None:
        """Import the plugin and say why it cannot be used; None where it can."""
        try:
            if entry.fault:
                self._load(entry)
            self.load(entry.kind, entry.name)
        except KvarenaError as refusal:
            return refusal
        return None

    def find(self, kind: str, name: str) -> Entry:
        """The one entry of this kind and name that may be used; nothing is imported.

        Raises:
            PluginError: no plugin has the name, two have, or it is left out by ``[plugins]``.
        """
        if kind not in KINDS:
            raise PluginError(f"no plugins are of the kind {kind!r}; {nearest(kind, KINDS)}")
        there = [entry for entry in self._entries if (entry.kind, entry.name) == (kind, name)]
        usable = [entry for entry in there if self._why_not(entry) is None]
        usable = [entry for entry in usable if not entry.fault] or usable[:1]
        if not usable:
            if there:
                raise PluginError(f"{there[0]} is installed, but {self._why_not(there[0])}")
            raise PluginError(f"no {KINDS[kind]} is named {name!r}; {nearest(name, self.names(kind))}")
        if len(usable) > 1:
            offers = " and ".join(f"{entry.distribution} {entry.version} ({entry.module})" for entry in usable)
            count = {2: "two"}.get(len(usable), str(len(usable)))
            cure = f"set {NO_AUTOLOAD}=1" if kind == "commands" else "name one's distribution in [plugins] disable"
            raise PluginError(
                f"{count} plugins offer the {KINDS[kind]} {name!r}: {offers}; uninstall one, or rename yours, or {cure}"
            )
        return usable[0]

    def duplicates(self) -> tuple[KvarenaError, ...]:
        """Each name that two plugins offer, as the refusal that asking for it would raise. Imports nothing."""
        found = []
        for kind, name in sorted({(entry.kind, entry.name) for entry in self.entries()}):
            try:
                self.find(kind, name)
            except PluginError as refusal:
                found.append(refusal)
        return tuple(found)

    def _why_not(self, entry: Entry) -> str | None:
        """Why ``[plugins]`` or the environment leaves this plugin out; None where it is in."""
        enabled = any(word in self._plugins.enable for word in entry.words)
        if any(word in self._plugins.disable for word in entry.words):
            return "[plugins] disable leaves it out"
        if not self._autoload and entry.distribution != OWN and not enabled:
            cure = "unset it" if entry.kind == "commands" else "name it in [plugins] enable"
            return f"{NO_AUTOLOAD} is set; {cure}"
        return None

    def _check_words(self, places: Places) -> None:
        """A word in ``[plugins]`` that names nothing is a misspelling, and would fail in silence."""
        known = {word for entry in self._entries for word in entry.words}
        for setting, words in (("enable", self._plugins.enable), ("disable", self._plugins.disable)):
            for word in words:
                if word not in known:
                    place = places.place(f"plugins.{setting}")
                    raise ConfigError(f"{place}: no installed plugin is named {word!r}; {nearest(word, known)}")


def whereabouts(distribution: str) -> str:
    """Where an installed distribution lies: the folder of its modules, or the source that it is an editable install of.

    Empty where it is not installed.
    """
    try:
        found = importlib_metadata.distribution(distribution)
    except importlib_metadata.PackageNotFoundError:
        return ""
    origin = found.origin
    if getattr(getattr(origin, "dir_info", None), "editable", False):
        return f"editable: {unquote(urlsplit(str(origin.url)).path)}"
    return str(found.locate_file(""))


def installed_entries(found: Survey | None = None) -> tuple[Entry, ...]:
    """Every entry point of every kind in this environment. Reads metadata; imports nothing."""
    return tuple(
        Entry(kind, name, distribution, version, target, extras, requires, fault)
        for kind, name, target, distribution, version, extras, requires, fault in (found or survey()).offers
        if kind in KINDS
    )


def _import(entry: Entry) -> Any:
    """Import what the entry names; whatever its module raises becomes one refusal that names it."""
    module, _, attribute = entry.target.partition(":")
    try:
        loaded = importlib.import_module(module)
        _check_api(entry, loaded)
        return attrgetter(attribute)(loaded) if attribute else loaded
    except KvarenaError:
        raise
    except ModuleNotFoundError as error:
        raise _missing(entry, error) from error
    except (Exception, SystemExit) as error:  # a module that leaves would take the command along
        raise PluginError(f"{entry}: {type(error).__name__}: {error}") from error


def _check_api(entry: Entry, module: Any) -> None:
    """A plugin may pin the interface it was written for, in its module or in its package."""
    package = sys.modules.get(entry.module.partition(".")[0])
    pinned = getattr(module, "kvarena_api", getattr(package, "kvarena_api", API_VERSION))
    if pinned != API_VERSION:
        raise PluginError(
            f"{entry}: it was written for plugin API {pinned}, and this kvarena has API {API_VERSION}; "
            f"install a version of {entry.distribution} that matches"
        )


def _missing(entry: Entry, error: ModuleNotFoundError) -> KvarenaError:
    """The refusal for a package that is not installed, with the extra that brings it if one does."""
    package = (error.name or "").partition(".")[0]
    extra = next(iter(entry.extras), None) or _extra_with(package, entry.requires)
    if package == entry.module.partition(".")[0] or extra is None:
        return PluginError(f"{entry}: {type(error).__name__}: {error}")
    if entry.distribution == OWN:
        return MissingExtraError(f"{package} (for the {KINDS[entry.kind]} {entry.name!r})", extra)
    return PluginError(f"{entry}: {error}; run: pip install '{entry.distribution}[{extra}]'")


def _extra_with(package: str, requires: Iterable[str]) -> str | None:
    """The first optional extra among the requirements that brings this package."""
    for requirement in requires:
        match = re.match(r"""([\w.-]+)[^;]*;.*\bextra\s*==\s*["']([\w.-]+)["']""", requirement)
        if match and match[1].lower().replace("-", "_") == package.lower():
            return match[2]
    return None
