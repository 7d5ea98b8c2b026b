"""The command that captures an engine's steady steps, as words and as text for a shell.

command = command_for("vllm", steps=10)
command.text()          the command, ready to be pasted
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from recipes.base.errors import PackError
from recipes.engines.engines import Engine, HowToCapture, engine_of, filled, launchers, values
from recipes.engines.nsight_flags import Flag, Nsight, flags, newest_nsight
from recipes.engines.placement import inside, launcher_in, ranks_in, split

#: Of fewer whole steps the check `steps_few` says that percentiles are rough.
STEPS = 10
_PATTERN = re.compile(r"%(?:q\{[^}]*\}|[hpn])")


@dataclass(frozen=True)
class Request:
    """What is to be captured, and how. `first` 0 and an empty launcher, output or program are the engine's own."""

    ranks: int = 1
    steps: int = STEPS
    first: int = 0
    launcher: str = ""
    one_report: bool = False
    output: str = ""
    program: tuple[str, ...] = ()


@dataclass(frozen=True)
class Command:
    """A command in its parts, what each flag does, and the flags that the nsys lacks."""

    engine: Engine
    request: Request  # with everything filled in
    nsight: Nsight
    environment: tuple[tuple[str, str, str], ...]
    before: tuple[str, ...]
    nsys: tuple[str, ...]
    program: tuple[str, ...]
    flags: tuple[Flag, ...]
    missing: tuple[Flag, ...]
    given: tuple[tuple[str, ...], ...]  # the engine's arguments that the user's command sets itself, as we would
    output: str  # the report's name, with the patterns that nsys fills in

    @property
    def reports(self) -> str:
        """The reports as a shell takes them: behind `--input`, for example."""
        parts = _PATTERN.split(self.output.removesuffix(".nsys-rep") + ".nsys-rep")
        return "*".join(shlex.quote(part) if part else "" for part in parts)

    def lines(self) -> list[str]:
        """The command, a flag a line."""
        assignments = [f"{name}={shlex.quote(value)}" for name, value, _ in self.environment]
        around = [shlex.join(self.before)] if self.before else []
        nsys = [shlex.join(self.nsys[:2]), *map(_quoted, self.nsys[2:])]
        return [*assignments, *around, *nsys, shlex.join(self.program)]

    def text(self) -> str:
        """The command over several lines, to be pasted into a shell."""
        return " \\\n    ".join(self.lines())


def command_for(engine: str, nsight: Nsight | None = None, request: Request | None = None, **wishes) -> Command:
    """The command for an engine, with only flags that the nsys has (by default the newest known).

    Wishes are fields of Request. PackError when they do not fit the engine.
    """
    chosen, nsight = engine_of(engine), nsight or newest_nsight()
    how = chosen.capture
    wanted = _completed(engine, chosen, replace(request or Request(), **wishes))
    known = values(how, wanted.steps, wanted.first, wanted.ranks)
    environment = tuple((name, filled(value, known), filled(why, known)) for name, value, why in how.environment)
    before, program = _around(how, wanted, known)
    variable = "" if wanted.one_report else launchers()[wanted.launcher].rank_variable
    # One's own %q{...} tells ranks apart already.
    output = f"{wanted.output}_rank%q{{{variable}}}" if variable and "%q{" not in wanted.output else wanted.output
    having, missing = _flags(how, nsight)
    words = [f"{flag.name}={output}" if flag.name == "--output" else flag.word for flag in having]
    return Command(
        engine=chosen,
        request=wanted,
        nsight=nsight,
        environment=environment,
        before=before,
        nsys=(nsight.executable, "profile", *words),
        program=program,
        flags=having,
        missing=missing,
        given=tuple(_filled_argument(one, known) for one in how.arguments if _gives(wanted.program, one)),
        output=output,
    )


def _completed(name: str, engine: Engine, wanted: Request) -> Request:
    """The request with the engine's own ways filled in, checked."""
    how = engine.capture
    if wanted.first and not engine.names_first:
        raise PackError(f"--first means nothing for a {engine.title}: its window opens when it is asked to")
    named = launcher_in(wanted.program)
    ranks = wanted.ranks if wanted.ranks > 1 else ranks_in(wanted.program) or _several(how, wanted)
    launcher = wanted.launcher or named or (how.launchers[0] if ranks > 1 else "none")
    if launcher not in launchers():
        raise PackError(f"no launcher {launcher!r}; there are {', '.join(launchers())}")
    if launcher not in how.launchers:
        raise PackError(
            f"{engine.title} is not started by {launcher} here: {_ways(how)}; give its command alone after --"
        )
    if wanted.one_report and launcher == "slurm":
        raise PackError("srun starts its ranks outside of nsys: one report cannot hold them; leave --one-report out")
    output = wanted.output or name
    return replace(wanted, ranks=ranks, launcher=launcher, first=wanted.first or how.first, output=output)


def _several(how: HowToCapture, wanted: Request) -> int:
    """A number of ranks for a launcher that tells none: any above 1, where it is not written anywhere."""
    if any("$rank_list" in argument for argument in how.arguments):
        raise PackError(f"cannot tell the number of ranks in {shlex.join(wanted.program)!r}: give it as --ranks N")
    return 2


def _ways(how: HowToCapture) -> str:
    if how.launchers == ("none",):
        return "one command starts all its ranks"
    return "by " + ", ".join(how.launchers)


def _quoted(flag: str) -> str:
    name, _, value = flag.partition("=")
    return f"{name}={shlex.quote(value)}"


def _around(how: HowToCapture, wanted: Request, known: dict[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The words before nsys, and the program behind its flags."""
    own = wanted.program or _own_program(how, wanted, known)
    before: tuple[str, ...] = ()
    if launcher_in(own):
        # With one report the launcher starts inside nsys, as it stands.
        before, own = ((), own) if wanted.one_report else split(own)
    elif wanted.launcher != "none":
        before = _launch(how, wanted, known)
        before, own = ((), inside(before, own)) if wanted.one_report else (before, own)
    return before, (*own, *_arguments(how, own, known))


def _own_program(how: HowToCapture, wanted: Request, known: dict[str, str]) -> tuple[str, ...]:
    more = how.program_of_ranks if wanted.ranks > 1 else ()
    launched = how.program_launched if wanted.launcher != "none" else ()
    return (*launched, *how.program, *(filled(word, known) for word in more))


def _launch(how: HowToCapture, wanted: Request, known: dict[str, str]) -> tuple[str, ...]:
    exports = " ".join(f"-x {name}" for name, _, _ in how.environment)
    words = launchers()[wanted.launcher].command
    text = [part for word in words for part in filled(word, {**known, "environment": exports}).split()]
    return (*text, *how.launcher_options.get(wanted.launcher, ()))


def _arguments(how: HowToCapture, program: Sequence[str], known: dict[str, str]) -> list[str]:
    """The engine's arguments that the program does not have yet."""
    wanted = [argument for argument in how.arguments if not _gives(program, argument)]
    return [word for argument in wanted for word in _filled_argument(argument, known)]


def _gives(program: Sequence[str], argument: Sequence[str]) -> bool:
    """Whether a command gives an argument already: --name value, --name=value or --name.field value."""
    return any(word == argument[0] or word.startswith((f"{argument[0]}=", f"{argument[0]}.")) for word in program)


def _filled_argument(argument: Sequence[str], known: dict[str, str]) -> tuple[str, ...]:
    """The argument's words; a list of ranks is many."""
    texts = [filled(word, known) for word in argument]
    return tuple(part for word, text in zip(argument, texts, strict=True) for part in _words(word, text))


def _words(word: str, text: str) -> list[str]:
    return text.split() if word == "$rank_list" else [text]


def _flags(how: HowToCapture, nsight: Nsight) -> tuple[tuple[Flag, ...], tuple[Flag, ...]]:
    """The flags that the engine wants: those that the nsys has, and those that it lacks."""
    wanted = [flag for flag in flags() if flag.used != "engine" or flag.name in how.flags]
    window = all(nsight.has(flag) for flag in wanted if flag.name == "--capture-range")
    # nsys takes no end of a window where it is given no window.
    having = tuple(flag for flag in wanted if nsight.has(flag) and (window or flag.used != "window"))
    return having, tuple(flag for flag in wanted if flag not in having)
