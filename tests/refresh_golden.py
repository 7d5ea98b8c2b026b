"""Makes the golden files again, all of them: python tests/refresh_golden.py. Then `git diff tests/golden` shows what
has changed, which is to be understood and wanted, line by line, before it is committed.

Needs the Nsight whose exports the golden files are of (golden_runs.NSIGHT).
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from golden_runs import every_case, why_not  # noqa: E402
from golden_text import GOLDEN, golden_file, golden_text  # noqa: E402


def main() -> None:
    cases = every_case()
    refused = [reason for reason in map(why_not, {case.inputs for case in cases}) if reason]
    if refused:
        sys.exit(refused[0])
    texts = {golden_file(case): golden_text(case) for case in cases}
    shutil.rmtree(GOLDEN, ignore_errors=True)
    for file, text in texts.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    print(f"{len(texts)} golden files, {sum(len(text.encode()) for text in texts.values()):,} bytes")


if __name__ == "__main__":
    main()
