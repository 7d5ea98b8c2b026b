"""Where nsys goes in a command that starts several ranks: behind the launcher's words, before the program."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from recipes.base.errors import PackError

NO_PYTHON = "--no-python"
Words = tuple[str, ...]

_LAUNCHER_OF = {"torchrun": "torchrun", "srun": "slurm", "mpirun": "mpi", "orterun": "mpi", "mpiexec": "mpich"}
_TORCHRUN_MODULES = (("-m", "torch.distributed.run"), ("-m", "torch.distributed.launch"))
# Words that are programs themselves, behind the options of a launcher.
_PROGRAM = re.compile(r"(?:.*/)?(?:python[\d.]*|bash|sh|env|uv|vllm|trtllm-[\w-]+|[\w.-]+\.(?:py|sh))")
_RANKS = re.compile(r" (?:--nproc[-_]per[-_]node|--ntasks|-np|-n)[ =]?(\d{1,5})(?= |$)")
_NODES = re.compile(r" --nnodes[ =](\S+)")


def launcher_in(command: Sequence[str]) -> str:
    """The launcher that a command begins with; "" for none."""
    return _found(command)[0]


def ranks_in(command: Sequence[str]) -> int | None:
    """The number of ranks that a launcher's words ask for: 1 without a launcher, None when they do not tell."""
    if not launcher_in(command):
        return 1
    words = " ".join(split(command)[0])
    ranks, nodes = _RANKS.search(words), _NODES.search(words)
    if not ranks or (nodes and not nodes[1].isdecimal()):
        return None
    return int(ranks[1]) * (int(nodes[1]) if nodes else 1)


def split(command: Sequence[str]) -> tuple[Words, Words]:
    """A command that begins with a launcher: the launcher's words, and the program that nsys goes before.

    PackError when the program cannot be told from the launcher's options.
    """
    launcher, first = _found(command)
    for place, word in enumerate(command[first:], first):
        before, program = tuple(command[:place]), tuple(command[place:])
        if launcher == "torchrun" and NO_PYTHON not in before and word in ("-m", "--module"):
            return (*before, NO_PYTHON), ("python3", "-m", *program[1:])
        if launcher == "torchrun" and NO_PYTHON not in before and word.endswith(".py"):
            return (*before, NO_PYTHON), ("python3", *program)
        if _PROGRAM.fullmatch(word):
            return before, program
    raise PackError(
        f"cannot tell the program in {shlex.join(command)!r}: give it alone after --, and the launcher by --launcher"
    )


def inside(launcher: Sequence[str], program: Sequence[str]) -> Words:
    """The command that starts a program on all ranks, without nsys in between: torchrun starts Python itself."""
    if NO_PYTHON in launcher and re.fullmatch(r"python[\d.]*", program[0]):
        return (*(word for word in launcher if word != NO_PYTHON), *program[1:])
    return (*launcher, *program)


def _found(command: Sequence[str]) -> tuple[str, int]:
    """The launcher that a command begins with, and how many words name it."""
    if tuple(command[1:3]) in _TORCHRUN_MODULES:
        return "torchrun", 3
    name = _LAUNCHER_OF.get(command[0].rpartition("/")[2], "") if command else ""
    return name, 1 if name else 0
