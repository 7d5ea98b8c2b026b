"""What each recipe says of each bundled report is what it said before: the printed text, and the values of all tables.

When a test here fails, its diff is a change that users see. If it is not meant, mend the code. If it is, run
`python tests/refresh_golden.py`, look at every line of `git diff tests/golden`, and commit the files with the change.
Below the printed text a file has, for each table, its rows and a digest of each column's values (see golden_text.py).
"""

from __future__ import annotations

import difflib

import pytest

from golden_runs import Case, every_case, why_not
from golden_text import GOLDEN, golden_file, golden_text

pytestmark = pytest.mark.slow

_SHOWN = 80


@pytest.mark.parametrize("case", every_case(), ids=lambda case: case.name)
def test_recipe_says_what_it_said(case: Case):
    reason = why_not(case.inputs)
    if reason:
        pytest.skip(reason)
    now, file = golden_text(case), golden_file(case)
    before = file.read_text() if file.exists() else ""
    if now != before:
        pytest.fail(f"{_told(before, now)}\nmeant? python tests/refresh_golden.py, then git diff tests/golden", False)


def _told(before: str, now: str) -> str:
    """The columns that have changed, and the lines that differ."""
    words, known = now.split(), set(before.split())
    columns = [word.partition(":")[0] for word in words if ":" in word[1:-1] and word not in known]
    lines = list(difflib.unified_diff(before.splitlines(), now.splitlines(), "before", "now", n=1, lineterm=""))
    more = [f"and {len(lines) - _SHOWN} lines more"] if len(lines) > _SHOWN else []
    return "\n".join([f"columns: {' '.join(dict.fromkeys(columns)) or 'none'}", *lines[:_SHOWN], *more])


def test_every_golden_file_has_its_case():
    assert {golden_file(case) for case in every_case()} == set(GOLDEN.rglob("*.txt"))
