"""``python -m kvarena``: the console script of this name, found as pip finds it: core knows no command line."""

import importlib_metadata

if __name__ == "__main__":
    scripts = importlib_metadata.entry_points(group="console_scripts", name="kvarena")
    next(script for script in scripts if script.module.startswith("kvarena.")).load()()
