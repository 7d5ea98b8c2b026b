"""The command that captures steady steps with nsys, and the few lines that open the window and name the steps."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from recipes.base.errors import PackError
from recipes.base.terminal import plain
from recipes.engines.command import STEPS, Command, Request, command_for
from recipes.engines.engines import Text, captured_engines, code_of, filled, launchers, values
from recipes.engines.nsight_flags import NEWEST, Nsight, newest_nsight, nsight_of_release, parse_help
from recipes.nsight.faults import importer, problems
from recipes.nsight.locate import (
    NAMED_BY,
    Installation,
    named_by_user,
    read_installation,
    run_quietly,
    search,
)

_WIDTH = 116
#: Larger numbers are taken for mistakes.
_MOST_RANKS, _MOST_STEPS = 100_000, 10_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds a command for each engine, all with the same options, to `parser`."""
    commands = parser.add_subparsers(title="engines", metavar="ENGINE", dest="engine")
    for name, engine in captured_engines().items():
        command = commands.add_parser(name, help=engine.title, description=f"How to capture {engine.title}.")
        _add_options(command, engine.capture.launchers)


def _add_options(command: argparse.ArgumentParser, possible: tuple[str, ...]) -> None:
    command.add_argument("--ranks", type=_count(_MOST_RANKS), default=1, metavar="N", help="GPUs or ranks (default: 1)")
    command.add_argument(
        "--launcher", choices=[name for name in launchers() if name in possible], help="what starts the ranks"
    )
    command.add_argument(
        "--one-report", action="store_true", help="all ranks of this machine in one report, not one report a rank"
    )
    command.add_argument(
        "--steps", type=_count(_MOST_STEPS), default=STEPS, metavar="N", help=f"steps in the window (default: {STEPS})"
    )
    command.add_argument(
        "--first", type=_count(_MOST_STEPS), default=0, metavar="N", help="the first of them, where it has to be named"
    )
    command.add_argument("--output", default="", metavar="NAME", help="name of the report (default: the engine's)")
    command.add_argument("--nsys", metavar="PATH", help="the nsys that is to capture (default: the one on PATH)")
    command.add_argument(
        "--nsys-version", metavar="RELEASE", help="answer for an nsys that is not on this machine, such as 2023.4"
    )
    command.add_argument("--command-only", action="store_true", help="print the command alone")
    command.add_argument("program", nargs="*", metavar="-- COMMAND", help="your own command, instead of an example")


def _count(most: int):
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:12]) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to {most}")
        return int(text)

    return parse


def main(args: argparse.Namespace) -> int:
    """Prints the command and how to use it; the choices when no engine is given. Returns 0.

    Raises PackError when the options do not fit together or a named nsys does not work.
    """
    if args.engine is None:
        _print(_choices())
        return 0
    nsight, remarks = _nsight(args.nsys, args.nsys_version)
    request = Request(args.ranks, args.steps, args.first, args.launcher or "", args.one_report, args.output)
    command = command_for(args.engine, nsight, request, program=tuple(args.program))
    remarks += _unknown_launcher(args)
    _print([command.text()] if args.command_only else _page(command, remarks))
    return 0


def _unknown_launcher(args: argparse.Namespace) -> list[str]:
    """What to know of a command that starts ranks in a way that nsys cannot be put inside."""
    name = Path(args.program[0]).name if args.program else ""
    if name not in ("accelerate", "deepspeed", "ray"):
        return []
    more = "" if args.ranks > 1 else ", and --ranks N puts a barrier into the code"
    return [f"{name} starts the ranks behind nsys: all ranks of a machine are in one report{more}"]


def _print(lines: Iterable[str]) -> None:
    print(plain("\n".join(lines), keep_lines=True))


def _choices() -> Iterator[str]:
    known = captured_engines()
    width = max(map(len, known))
    for name, engine in known.items():
        yield f"{name.ljust(width)}  {engine.title}"
    yield ""
    yield "capture-command ENGINE [--ranks N] [--steps N] [-- your own command]"
    yield "capture-command ENGINE --help   all options"


def _page(command: Command, remarks: list[str]) -> Iterator[str]:
    """The command, what it does, the window, the names of steps, and what to do then."""
    engine, wanted = command.engine, command.request
    known = values(engine.capture, wanted.steps, wanted.first, wanted.ranks)
    yield f"{engine.title}: {wanted.steps} steady steps, with nsys {command.nsight.release}"
    yield from (f"! {remark}" for remark in remarks)
    yield from ("", command.text(), "")
    explained = [(f"{name}={value}", why) for name, value, why in command.environment]
    yield from _table(explained + [(flag.word, flag.does) for flag in command.flags])
    given = [argument for argument in command.given if len(argument) > 1]
    if given:
        yield from ("", *_wrapped(f"Your command sets these itself; for this window: {shlex.join(sum(given, ()))}"))
    lost = [(flag.word, flag.lost) for flag in command.missing if flag.lost]
    if lost:
        yield from ("", f"nsys {command.nsight.release} lacks, and without them:", *_table(lost))
    yield from _section("Window", engine.capture.window, known)
    yield from _section("Steps", engine.ranges, known)
    for note in engine.capture.notes:
        yield from ("", *_wrapped(filled(note, known)))
    if any(flag.name == "--capture-range" for flag in command.flags):
        text = "`Generated:` with nothing under it means that the window never opened: see that the program gets there."
        yield from ("", *_wrapped(text))
    yield from ("", f"Then: nsys recipe llm_capture_check --input {command.reports}")


def _section(title: str, text: Text, known: Mapping[str, str]) -> Iterator[str]:
    yield from ("", *_wrapped(f"{title}. {filled(text.how, known)}"))
    if text.code:
        yield from ("", filled(code_of(text.code), known).rstrip("\n"))


def _wrapped(text: str, indent: str = "") -> list[str]:
    # What one copies must stay in one piece.
    return textwrap.wrap(text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _table(rows: list[tuple[str, str]]) -> Iterator[str]:
    width = max((len(name) for name, _ in rows), default=0)
    for name, text in rows:
        yield from _wrapped(f"  {name.ljust(width)}  {text}", " " * (width + 4))


def _nsight(path: str | None, release: str | None) -> tuple[Nsight, list[str]]:
    """The Nsight that is to capture, and what is to be said about it."""
    if release:
        return nsight_of_release(release), [f"flags of {release} by the pack's table: that nsys was not asked"]
    installation = read_installation(named_by_user(path)) if path else _at_hand()
    if installation is None:
        return newest_nsight(), [
            f"no nsys on this machine: flags of the newest known ({NEWEST}); --nsys-version tells another release"
        ]
    nsight, remarks = _asked(installation)
    return nsight, [*remarks, *_trouble(installation)]


def _at_hand() -> Installation | None:
    """The nsys that the user names, else the one on PATH, else the newest on this machine that can capture."""
    on_path = None if os.environ.get(NAMED_BY) else shutil.which("nsys")
    if on_path:
        try:
            return read_installation(Path(on_path))
        except PackError:
            pass  # A broken one: another may work, and `check` tells why this one does not.
    found = search().installations
    return next((one for one in found if importer(one)), found[0] if found else None)


def _asked(installation: Installation) -> tuple[Nsight, list[str]]:
    """An installation's own word on its flags; the table's when it cannot be had."""
    on_path = shutil.which("nsys")
    is_first = on_path is not None and Path(on_path).resolve() == installation.nsys.resolve()
    executable = "nsys" if is_first else str(installation.nsys)
    try:
        told = parse_help(run_quietly([str(installation.nsys), "profile", "--help"]))
    except PackError as error:
        told, why = {}, str(error)
    else:
        why = "its help is of a new form"
    if "--trace" in told:
        return Nsight(executable, installation.release, told), []
    by_table = nsight_of_release(installation.release)
    return Nsight(executable, by_table.release), [
        f"flags by the pack's table, as {executable} did not tell them: {why}"
    ]


def _trouble(installation: Installation) -> list[str]:
    """What keeps an installation from making reports of new captures."""
    if installation.recipe_package is None:
        return []
    found = [f"{fault.what}; {fault.remedy}" for fault in problems(installation) if fault.blocks == "captures"]
    if importer(installation) is None:
        found.append(
            f"{installation.nsys} has no QdstrmImporter beside it, as when only Debian's nsight-systems-target is "
            "installed: a capture stays a .qdstrm file until that program of the whole package makes a report of it"
        )
    return found
