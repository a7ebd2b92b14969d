"""The house: a room imports only from floors below it, and the wings import the ground floor alone."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ON_CORE = ("models", "prefix_tree", "hicache", "pd", "parallel", "speculative", "report", "metrics", "scaffold")
FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"core/terms"}),
    frozenset({"core/planning", "core/ledger"}),
    frozenset({"core/bands"}),
    frozenset({"core/chain"}),
    frozenset({"core/admission"}),
    frozenset({"core/storage"}),
    frozenset({"core/assembly"}),
    frozenset(f"plugins/{room}" for room in ON_CORE),
    frozenset({"plugins/serving"}),
    frozenset({"plugins/transformers", "plugins/replay", "plugins/stress"}),
    frozenset({"plugins/conformance"}),
    frozenset({"plugins/cli"}),
)
WINGS = frozenset({"layouts", "backends", "policies"})
FACES = frozenset({"core", "plugins"})
"""``kvarena`` itself names what is public, so it may import any floor; nothing inside imports it."""

BANNED_IN_CORE = frozenset({"torch", "transformers", "triton", "time", "random", "threading", "secrets", "datetime"})
OWN = "kvarena"


def python_files() -> list[Path]:
    """Every file of the package, as paths from the root of the checkout."""
    return sorted(
        path.relative_to(ROOT)
        for top in (*FACES, *WINGS)
        for path in (ROOT / top).rglob("*.py")
        if "build" not in path.parts
    )


def room_of(path: Path) -> str:
    """``core/chain/relief.py`` is in the room ``core/chain``; a wing is a room; a face stands alone."""
    if path.parts[0] in WINGS:
        return path.parts[0]
    return "/".join(path.parts[:2]) if len(path.parts) > 2 else path.parts[0]


def modules_imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted module) of every import in the file, those under ``TYPE_CHECKING`` included."""
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import; write it in full"
            yield node.lineno, node.module or ""
            # ``from kvarena.terms import ranges`` imports the module kvarena.terms.ranges
            if (node.module or "").split(".")[0] == OWN:
                yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def room_of_module(module: str) -> str | None:
    """The room of a module of ours: ``kvarena.plugins.cli.main`` is in ``plugins/cli``; None for others."""
    parts = module.split(".")
    if parts[0] != OWN:
        return None
    if len(parts) == 1:
        return "core"
    if parts[1] in WINGS:
        return parts[1]
    if parts[1] == "plugins":
        return f"plugins/{parts[2]}" if len(parts) > 2 else "plugins"
    return f"core/{parts[1]}"


def floor_of(room: str) -> int | None:
    """The number of the floor a room is on; None for a wing or a face."""
    return next((number for number, rooms in enumerate(FLOORS) if room in rooms), None)


def complaints(path: Path) -> list[str]:
    """What the file imports and may not."""
    room, found = room_of(path), []
    for line, module in modules_imported(path):
        target = room_of_module(module)
        if target is None or target == room or room in FACES:
            continue
        place = f"{path}:{line}: {room} imports {module}"
        if room in WINGS:
            if target != "core/terms":
                found.append(f"{place}; a wing imports core/terms alone")
        elif target in WINGS:
            found.append(f"{place}; nobody imports a wing: ask the catalog for it by name")
        elif target in FACES:
            if module not in (OWN, f"{OWN}.plugins"):
                continue
            found.append(f"{place}; the face is for users: import the room")
        else:
            own, other = floor_of(room), floor_of(target)
            if own is None or other is None:
                found.append(f"{place}; one of the two rooms is on no floor of the list")
            elif other >= own:
                found.append(f"{place}; it is on floor {other}, not below {own}")
    return found


@pytest.mark.req("PLG-1")
@pytest.mark.parametrize("path", python_files(), ids=str)
def test_imports_go_down(path: Path) -> None:
    """Each file imports rooms of lower floors, or its own room, and no wing."""
    assert not complaints(path), "\n".join(complaints(path))


def test_every_room_is_on_a_floor() -> None:
    """A new folder has a place in the list before it has code."""
    rooms = {room_of(path) for path in python_files()} - WINGS - FACES
    homeless = sorted(room for room in rooms if floor_of(room) is None)
    assert not homeless, f"{homeless} are on no floor; give them one in FLOORS"


def test_the_ground_floor_imports_nothing_of_ours() -> None:
    """``core/terms`` is the only room that every other may speak."""
    for path in python_files():
        if room_of(path) == "core/terms":
            rooms = {room_of_module(module) for _, module in modules_imported(path)} - {None}
            assert rooms <= {"core/terms"}, f"{path} imports {sorted(filter(None, rooms))}"


def test_no_circles_of_modules() -> None:
    """Inside a room modules may import each other, but never in a circle."""
    names = {path: ".".join(path.with_suffix("").parts).replace("core", OWN, 1) for path in python_files()}
    names = {p: n if n.startswith(OWN) else f"{OWN}.{n}" for p, n in names.items()}
    known = {name.removesuffix(".__init__"): path for path, name in names.items()}
    edges = {
        module: sorted({other for _, other in modules_imported(path) if other in known and other != module})
        for module, path in known.items()
    }
    done: set[str] = set()

    def walk(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " imports ".join((*trail[trail.index(module) :], module))
        if module not in done:
            for other in edges[module]:
                walk(other, (*trail, module))
            done.add(module)

    for module in edges:
        walk(module, ())


@pytest.mark.parametrize("path", [path for path in python_files() if path.parts[0] == "core"], ids=str)
def test_core_is_deterministic_and_knows_no_framework(path: Path) -> None:
    """No clock, no chance, no threads and no torch: the same calls give the same bytes anywhere."""
    banned = sorted({module for _, module in modules_imported(path) if module.split(".")[0] in BANNED_IN_CORE})
    assert not banned, f"{path} imports {', '.join(banned)}"
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        chance = (
            isinstance(node, ast.Attribute)
            and node.attr == "random"
            and getattr(node.value, "id", "") in ("np", "numpy")
        )
        assert not chance, f"{path}:{node.lineno}: numpy's random is chance too"


def test_the_list_of_floors_finds_a_way_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test itself: an import upwards, of a wing, and by a wing is each found."""
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    scenes = {
        "core/bands/x.py": ("from kvarena.chain import chain", "not below"),
        "core/chain/x.py": ("import kvarena.layouts.mha", "nobody imports a wing"),
        "layouts/x.py": ("from kvarena.planning import plan", "a wing imports core/terms alone"),
        "plugins/models/x.py": ("from kvarena.plugins import pd", "not below"),
        "plugins/cli/x.py": ("import kvarena", "the face is for users"),
    }
    for name, (code, finding) in scenes.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(code + "\n")
        assert any(finding in complaint for complaint in complaints(Path(name))), name
