"""What is known of engines: each file in recipes/engines/ is whole, and one more file is one more engine."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from recipes.base.errors import PackError
from recipes.base.typed_json import read_typed
from recipes.cli.capture_command import _choices
from recipes.engines import engines as module
from recipes.engines.command import command_for
from recipes.engines.engines import FOLDER, Engine, captured_engines, engines
from recipes.findings.check_table import checks
from recipes.findings.engine import _signs
from recipes.findings.remedies import remedy
from recipes.steps.phases import load_phase_rules, packaged_lines

NEW = {
    "title": "a new server",
    "detection": [{"order": 5, "where": "process", "pattern": "^new", "source": "its source"}],
    "ranges": {
        "how": "It names its steps.",
        "examples": {"new step 1": "decode"},
        "rules": [
            {
                "rule": "new",
                "order": 5,
                "pattern": "new step (?P<step>\\d+)",
                "phase": "decode",
                "source": "its source",
                "example": "new step 1",
                "not_example": "new start",
            }
        ],
    },
    "capture": {
        "order": 15,
        "program": ["new", "serve"],
        "launchers": ["none"],
        "window": {"how": "It opens by itself."},
        "sources": ["https://example.org"],
        "environment": [["NEW_NVTX", "1", "names steps"]],
    },
    "remedies": {"no_nvtx": "set NEW_NVTX=1"},
}


def changed(place: str, value) -> dict:
    """NEW with another value at a place; without what stands there for None."""
    entry = json.loads(json.dumps(NEW))
    *way, last = [int(step) if step.isdigit() else step for step in place.split(".")]
    inner = entry
    for step in way:
        inner = inner[step]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return entry


@pytest.fixture
def one_more(tmp_path, monkeypatch):
    """The packaged engines and NEW."""
    folder = tmp_path / "engines"
    shutil.copytree(FOLDER, folder)
    (folder / "new.json").write_text(json.dumps(NEW))
    monkeypatch.setattr(module, "FOLDER", folder)
    cached = (engines, captured_engines, _signs)
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


def test_one_file_is_an_engine(one_more):
    assert [line.partition(" ")[0] for line in _choices()][:3] == ["train", "new", "pytorch"]
    assert "NEW_NVTX=1" in command_for("new").text() and command_for("new").program == ("new", "serve")
    assert load_phase_rules()[0].meaning("new step 7").number == 7
    assert _signs()[0][0] == "new"
    assert remedy("no_nvtx", "new") == "set NEW_NVTX=1"
    assert remedy("processes", "new") == remedy("processes")


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (changed("titel", "x"), "new.json: no such key as 'titel'; there are capture, detection, ranges, "),
        (changed("title", None), "new.json: 'title' is missing; add it"),
        (changed("title", 1), "new.json: title: '1' is not a text"),
        (changed("detection.0.order", "5"), "new.json: detection[0]: order: '5' is not a whole number"),
        (changed("detection.0.order", True), "new.json: detection[0]: order: 'True' is not a whole number"),
        (changed("ranges.rules.0.patern", "x"), "new.json: ranges: rules[0]: no such key as 'patern'"),
        (changed("ranges.examples", []), "new.json: ranges: examples: '[]' is not an object"),
        (changed("capture.program", "new serve"), "new.json: capture: program: 'new serve' is not a list"),
        (changed("capture.launcher_options", {"slurm": "--mpi"}), "launcher_options: slurm: '--mpi' is not a list"),
        (changed("capture.environment", [["A", "1"]]), "capture: environment[0]: 2 entries instead of 3"),
        ([], "new.json: '[]' is not an object"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_fault_in_a_file_is_one_line_with_its_place(entry, said, tmp_path):
    path = tmp_path / "new.json"
    path.write_text(json.dumps(entry))
    with pytest.raises(PackError) as error:
        read_typed(path, Engine)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_is_not_json_names_its_line(tmp_path):
    (tmp_path / "new.json").write_text('{\n"title": "x",,\n}')
    with pytest.raises(PackError, match=r"new\.json:2: this is not JSON"):
        read_typed(tmp_path / "new.json", Engine)


# The packaged files.


@pytest.mark.parametrize("name", [path.stem for path in sorted(FOLDER.glob("*.json"))])
def test_every_file_is_whole(name):
    engine = engines()[name]
    assert engine.title
    for sign in engine.detection:
        assert sign.where in ("rule", "process", "command", "kernel") and sign.source
        assert re.compile(sign.pattern)
    if any(sign.where == "rule" for sign in engine.detection):
        patterns = [pattern for found, where, pattern in _signs() if (found, where) == (name, "rule")]
        assert any(pattern.search(line.rule) for pattern in patterns for line in engine.ranges.rules)
    assert all(line.source for line in engine.ranges.rules)
    assert engine.remedies.keys() <= checks().keys()
    assert all(text.strip() and "\n" not in text for text in engine.remedies.values())
    # llm_capture_check points to the command of the engine that it tells.
    assert not engine.detection or name in captured_engines()


def test_no_two_signs_have_one_order():
    orders = [sign.order for engine in engines().values() for sign in engine.detection]
    assert len(set(orders)) == len(orders)
    shown = [engine.capture.order for engine in captured_engines().values()]
    assert len(set(shown)) == len(shown)


def test_what_tells_most_is_asked_first():
    """Rules name an engine for sure; ATen's kernels are in those of every engine made with PyTorch."""
    wheres = [where for _, where, _ in _signs()]
    assert wheres == sorted(wheres, key=("rule", "process", "command", "kernel").index)
    assert _signs()[-1][0] == "pytorch"


def test_rules_of_all_engines_are_among_those_that_are_tried():
    tried = packaged_lines()
    assert all(line in tried for engine in engines().values() for line in engine.ranges.rules)
