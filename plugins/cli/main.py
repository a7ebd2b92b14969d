"""The ``kvarena`` command: finds its subcommands in the catalog and turns errors into exit codes.

0: done. 2: something the user can mend, said in one message. 130: interrupted. A traceback is a bug of ours.
"""

import ast
import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from kvarena.assembly.catalog import Entry
from kvarena.plugins.cli.context import catalog_of
from kvarena.plugins.cli.logs import LOG_FORMAT_VARIABLE, LOG_VARIABLE, settle_logs
from kvarena.plugins.cli.plain import settle_streams, write_line
from kvarena.terms.errors import InvariantError, KvarenaError, PluginError, nearest
from kvarena.terms.offers import OWN
from kvarena.terms.telling import FORMATS, LEVELS

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class Commands(click.Group):
    """A click group whose commands are the catalog's kind ``commands``, imported when named or listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, broken ones included."""
        return list(catalog_of(ctx).names("commands"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name; None where there is none.

        Raises:
            KvarenaError: the command is broken, or two plugins offer it.
        """
        catalog = catalog_of(ctx)
        if cmd_name not in catalog.names("commands"):
            return None
        command = catalog.load("commands", cmd_name)
        if not isinstance(command, click.Command):
            entry = catalog.find("commands", cmd_name)
            raise PluginError(f"{entry}: it offers a {type(command).__name__}, no click command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it, with the nearest name for a misspelt one."""
        if args and not args[0].startswith("-") and args[0] not in (names := self.list_commands(ctx)):
            if catalog_of(ctx).offers("commands", args[0]):
                catalog_of(ctx).find("commands", args[0])  # says why it is left out
            ctx.fail(f"no command is named {args[0]!r}; {nearest(args[0], names)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was named.

        Raises:
            PluginError: the command is another distribution's, and crashed; its own traceback is the cause.
        """
        try:
            return super().invoke(ctx)
        except (KvarenaError, InvariantError, OSError, MemoryError):
            raise
        except (click.ClickException, click.exceptions.Exit, click.Abort):  # click's own way to leave
            raise
        except Exception as error:
            name = ctx.invoked_subcommand
            if not name or (entry := catalog_of(ctx).find("commands", name)).distribution == OWN:
                raise
            place, said = traceback.extract_tb(error.__traceback__)[-1], str(error).partition("\n")[0]
            raise PluginError(
                f"{entry} crashed: {type(error).__name__}: {said} ({place.filename}:{place.lineno}); tell its author"
            ) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One line a command, from its module's docstring: no command is imported to be listed."""
        rows = [(entry.name, _what_it_does(entry)) for entry in catalog_of(ctx).entries("commands")]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _what_it_does(entry: Entry) -> str:
    """The first line of a command's module, without the command's name in front; read, not run.

    Importing would do, but a command that serves models takes seconds to import, and one may be broken.
    """
    try:
        spec = importlib.util.find_spec(entry.module)
        source = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else None
        text = (ast.get_docstring(ast.parse(source)) if source is not None else None) or ""
    except Exception as error:  # a stranger's package may raise anything while its parent is imported
        return f"(broken) {entry}: {error}"
    if source is None:
        return f"(broken) {entry}: there is no module {entry.module!r}"
    line = text.partition("\n")[0]
    return line.removeprefix(f"``kvarena {entry.name}``: ")


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True)
@click.version_option(package_name="kvarena", message="%(prog)s %(version)s")
@click.option(
    "--log",
    type=click.Choice(LEVELS),
    envvar=LOG_VARIABLE,
    show_envvar=True,
    help="Tell events of this level on stderr; warning, if [logs] says nothing either.",
)
@click.option(
    "--log-format",
    type=click.Choice(FORMATS),
    envvar=LOG_FORMAT_VARIABLE,
    show_envvar=True,
    help="One line an event, for people or as JSON; console, if [logs] says nothing either.",
)
@click.pass_context
def cli(ctx: click.Context, log: str | None, log_format: str | None) -> None:
    """One arena, many bands: plan, run and replay hybrid KV caches in which any band may take any free byte."""
    settle_logs()
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; ``None`` takes the process's own arguments."""
    try:
        result = cli.main(args=arguments, prog_name="kvarena", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except KvarenaError as error:
        write_line(f"kvarena: {' '.join(str(error).splitlines())}")
        return EXIT_USAGE
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        command = context.command_path if context else "kvarena"
        write_line(f"{command}: {error.format_message()} (see {command} --help)")
        return EXIT_USAGE
    except (click.Abort, KeyboardInterrupt):
        write_line("kvarena: interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _drop_stdout()
        return 0
    except SystemExit as leaving:
        if not isinstance(leaving.__context__, BrokenPipeError):
            raise
        _drop_stdout()  # click's own answer to a reader that has gone
        return 0
    except MemoryError:
        write_line("kvarena: this machine has not enough memory for that; lower --memory, or [arena] memory")
        return EXIT_USAGE
    except OSError as error:
        write_line(f"kvarena: {error.filename or 'the output'}: cannot be read or written: {error.strerror}")
        _drop_stdout()
        return EXIT_USAGE


def _drop_stdout() -> None:
    """The reader has gone (``| head``): let the interpreter's last flush go nowhere instead of failing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """The console script."""
    settle_streams()
    sys.exit(run())
