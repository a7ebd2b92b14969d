"""The console script's first step: it imports next to nothing, so that Ctrl-C is one line from the start."""

import importlib
import sys


def main() -> None:
    """Import the command and run it; most of a short command's time goes into its imports."""
    try:
        command = importlib.import_module("kvarena.plugins.cli.main")
    except KeyboardInterrupt:
        print("kvarena: interrupted", file=sys.stderr)
        sys.exit(130)
    command.main()


if __name__ == "__main__":
    main()
