"""Hook plugins: those that a config enables, and the calls of their hooks, in the order in which they are listed."""

import inspect
from collections.abc import Iterable
from typing import Any

import attrs
import pluggy

from kvarena.assembly import hookspecs
from kvarena.assembly.catalog import Catalog, Entry
from kvarena.assembly.config import PluginsConfig
from kvarena.ledger.clearance import CLEARANCE, Clearance, Extension
from kvarena.storage.storage import Storage
from kvarena.terms.errors import PluginError
from kvarena.terms.marks import PROJECT


@attrs.frozen(eq=False)
class HookPlugin:
    """One hook plugin, made, with a manager of its own: what it raises is known to be its."""

    entry: Entry
    manager: pluggy.PluginManager

    @classmethod
    def of(cls, entry: Entry, plugin: Any) -> "HookPlugin":
        """The plugin that an entry offers; a class is made without arguments.

        Raises:
            PluginError: it cannot be made, or implements a hook that does not exist.
        """
        manager = pluggy.PluginManager(PROJECT)
        manager.add_hookspecs(hookspecs)
        try:
            manager.register(plugin() if inspect.isclass(plugin) else plugin, name=str(entry))
            manager.check_pending()
        except Exception as error:  # a stranger's class may raise anything while it is made
            words = " ".join(str(error).split())  # pluggy's have several lines
            raise PluginError(f"{entry}: {type(error).__name__}: {words}") from error
        return cls(entry, manager)

    def call(self, hook: str, **arguments: Any) -> list[Any]:
        """Call a hook of this plugin: a list of what it returns, empty where that is None or it has no such hook.

        Raises:
            PluginError: it raised.
        """
        try:
            found: list[Any] = getattr(self.manager.hook, hook)(**arguments)
        except Exception as error:
            raise PluginError(f"{self.entry}: {hook}: {type(error).__name__}: {error}") from error
        return found


def hook_plugins(catalog: Catalog, config: PluginsConfig) -> tuple[HookPlugin, ...]:
    """The hook plugins that ``[plugins] enable`` names, made, in the order of their names.

    Raises:
        PluginError: one is broken, or implements a hook that does not exist.
    """
    return tuple(
        HookPlugin.of(entry, catalog.load("plugins", entry.name))
        for entry in catalog.entries("plugins")
        if any(word in config.enable for word in entry.words)
    )


def clearance_of(plugins: Iterable[HookPlugin]) -> Clearance:
    """The table of who waits for what, with the rows and columns of the hook plugins.

    Raises:
        PluginError: a plugin raised or returned no extension, or a pair is left without an answer.
    """
    found: list[Extension] = []
    for plugin in plugins:
        for one in plugin.call("kvarena_clearance"):
            if not isinstance(one, Extension):
                raise PluginError(
                    f"{plugin.entry}: kvarena_clearance returned {one!r}; it must return an Extension, or None"
                )
            found.append(one)
    return CLEARANCE.extended(*found)


def follow_life(plugins: Iterable[HookPlugin], storage: Storage) -> None:
    """Tell each plugin that the storage opened, and those that heard it when it is released.

    Raises:
        PluginError: a plugin raised; those after it were not told. The storage is to be released.
    """
    heard: list[HookPlugin] = []
    storage.at_release.append(lambda: tell_closed(heard, storage))
    for plugin in plugins:
        plugin.call("kvarena_storage_opened", storage=storage)
        heard.append(plugin)


def tell_closed(plugins: Iterable[HookPlugin], storage: Storage) -> None:
    """Tell each plugin that the storage closes; one that raises keeps none of the others from it.

    Raises:
        PluginError: plugins raised: each, in one message.
    """
    failures: list[PluginError] = []
    for plugin in plugins:
        try:
            plugin.call("kvarena_storage_closed", storage=storage)
        except PluginError as failure:
            failures.append(failure)
    if failures:
        raise PluginError("; ".join(map(str, failures))) from failures[0]
