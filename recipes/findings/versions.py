"""Is the export of a version that the pack was tested with?"""

from __future__ import annotations

from collections.abc import Iterator

from recipes.findings.finding import Finding
from recipes.findings.registry import cannot_tell
from recipes.findings.subject import Subject
from recipes.report import schema

#: The export schemas that the pack was tested with: the first that its reader knows, and the newest that was seen.
OLDEST, NEWEST = (2, 9), (3, 28)


def schema_version(subject: Subject) -> Iterator[Finding]:
    """A schema that is older or newer than all that were tested."""
    if not subject.capture.report.has(schema.EXPORT_INFO):
        message = f"the export is of Nsight 2021 or older: this pack was tested from schema {_shown(OLDEST)} on"
        yield subject.found("old_schema", message, "it does not tell the version of its schema")
        return
    text = subject.facts.schema_version
    parts = text.split(".")[:2]
    if len(parts) < 2 or not all(part.isascii() and part.isdigit() for part in parts):
        yield cannot_tell("new_schema", "the export does not tell the version of its schema")
        return
    version, evidence = tuple(map(int, parts)), f"schema {text}"
    if version > NEWEST:
        message = f"the export is newer than this pack was tested with ({_shown(NEWEST)})"
        yield subject.found("new_schema", message, evidence)
    elif version < OLDEST:
        message = f"the export is older than this pack was tested with ({_shown(OLDEST)})"
        yield subject.found("old_schema", message, evidence)


def _shown(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
