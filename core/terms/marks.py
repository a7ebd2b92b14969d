"""The pluggy markers: ``@hookimpl`` on a plugin's functions, ``@hookspec`` on ours."""

import pluggy

PROJECT = "kvarena"
API_VERSION = 1
"""The version of the plugin interface; a plugin may pin it with ``kvarena_api = 1`` in its module."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
