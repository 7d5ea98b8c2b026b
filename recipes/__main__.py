"""The pack's own command: `python -m recipes`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from recipes import __version__
from recipes.base.errors import PackError
from recipes.base.pack import describe, recipe_names
from recipes.nsight.recipe_python import NEEDED

#: The name shown in help texts; a wheel's console script sets its own.
PROGRAM = os.environ.get("NSYS_LLM_RECIPES_PROGRAM", "python -m recipes")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Returns the exit status; errors that a user can cause are one line."""
    parser = _parser()
    try:
        args = parser.parse_args(arguments)
        return args.command(args)
    except (PackError, argparse.ArgumentTypeError) as error:
        print(f"ERROR: {_one_line(str(error))}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Whoever read our output has gone; nothing more can be said to them.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


def _one_line(text: str) -> str:
    from recipes.base.terminal import plain

    return plain(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description="LLM recipes for NVIDIA Nsight Systems. Without a command: the list of recipes."
    )
    parser.add_argument("--version", action="version", version=f"nsys-llm-recipes {__version__}")
    parser.set_defaults(command=_list)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_run(commands)
    for name, module, text in (
        ("classify", "classify", "print the family of kernel names, to write and test rules"),
        ("check", "machine_check", "tell what works on this machine, and what to do about the rest"),
        ("capture-command", "capture_command", "print the nsys command that captures an engine's steady steps"),
    ):
        _add_module(commands, name, module, text)
    _add_install(commands)
    return parser


def _list(args: argparse.Namespace) -> int:
    names = recipe_names()
    width = max(map(len, names))
    for name in names:
        print(f"{name.ljust(width)}  {describe(name)}")
    print(f"\nnsys recipe <name> --input <report>   or, without Nsight:   {PROGRAM} run <name> --input <export>")
    return 0


def _add_run(commands) -> None:
    run = commands.add_parser("run", help="run a recipe without Nsight's framework, on reports or their exports")
    run.add_argument("recipe", choices=recipe_names(), help="the recipe to run; `run RECIPE --help` tells its options")
    run.add_argument("rest", nargs=argparse.REMAINDER, metavar="...", help="the recipe's options")
    run.set_defaults(command=_run)


def _run(args: argparse.Namespace) -> int:
    # The heavy imports wait until a recipe is really run.
    try:
        from recipes.run.local import run_locally
    except ModuleNotFoundError as error:
        if error.name not in NEEDED:
            raise
        raise PackError(
            f"this Python ({sys.executable}) lacks {error.name}; use .venv/bin/python, which ./demo makes, or "
            f"pip install {' '.join(NEEDED)}"
        ) from None
    return run_locally(args.recipe, args.rest, f"{PROGRAM} run {args.recipe}")


def _add_module(commands, name: str, module: str, text: str) -> None:
    import importlib

    loaded = importlib.import_module(f"recipes.cli.{module}")
    command = commands.add_parser(name, help=text, description=loaded.__doc__)
    loaded.add_arguments(command)
    command.set_defaults(command=loaded.main)


def _add_install(commands) -> None:
    from recipes.cli import install

    for verb, action, text in (
        ("install", install.main_install, "make the recipes known to an Nsight installation"),
        ("uninstall", install.main_uninstall, "take that back"),
    ):
        command = commands.add_parser(verb, help=text)
        install.add_arguments(command)
        command.set_defaults(command=action)


if __name__ == "__main__":
    sys.exit(main())
