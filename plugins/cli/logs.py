"""What a command tells on stderr of what happens: by its options, else by the ``[logs]`` of its file."""

import click

from kvarena.assembly.config import LogsConfig
from kvarena.terms.telling import tell_events

LOG_VARIABLE, LOG_FORMAT_VARIABLE = "KVARENA_LOG", "KVARENA_LOG_FORMAT"


def settle_logs(logs: LogsConfig | None = None) -> None:
    """Tell events at the level and in the form of ``--log`` and ``--log-format``; where they are silent, of ``logs``.

    Both options have variables of the environment, which stand for them. Called once a command has read its file, and
    before that with none.
    """
    root, logs = click.get_current_context().find_root(), logs or LogsConfig()
    level, form = root.params.get("log"), root.params.get("log_format")
    tell_events(level or logs.level, form or logs.format)
