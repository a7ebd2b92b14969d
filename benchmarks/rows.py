"""The rows that every benchmark prints: a case, our figure and its unit, the peer's in the same run, the goal."""

import json
from typing import Any


def figure(case: str, ours: float, unit: str, goal: float | None = None) -> dict[str, Any]:
    """A row of a figure that no peer has."""
    return {"case": case, "ours": round(ours, 3), "unit": unit, "peer": None, "theirs": None, "goal": goal}


def show(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    """Print the rows: one document for programs, a line each for people."""
    if as_json:
        print(json.dumps({"rows": rows}, indent=2))
        return
    for row in rows:
        goal = "" if row["goal"] is None else f"  (goal {row['goal']:,.6g})"
        theirs = "" if row["theirs"] is None else f"  ({row['peer']}: {row['theirs']:,.2f})"
        print(f"{row['case']}: {row['ours']:,.2f} {row['unit']}{theirs}{goal}")
