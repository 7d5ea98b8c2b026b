"""`python -m recipes capture-command`: commands that the real nsys takes, ranges that the real rules understand."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from conftest import pack
from recipes.base.errors import PackError
from recipes.cli import capture_command
from recipes.engines.command import command_for
from recipes.engines.engines import FOLDER, captured_engines, code_of, engine_of, filled, launchers, values
from recipes.engines.nsight_flags import Flag, Nsight, flags, nsight_of_release, parse_help
from recipes.nsight.locate import run_quietly
from recipes.steps.phases import ENOUGH, load_phase_rules

NAMES = list(captured_engines())
TORCHRUN = ("torchrun", "--nproc-per-node", "8", "train.py", "--name", "two words")


@pytest.fixture(scope="module")
def asked(installation) -> Nsight:
    """The nsys of this machine, by its own word."""
    told = run_quietly([str(installation.nsys), "profile", "--help"])
    return Nsight(str(installation.nsys), installation.release, parse_help(told))


def window_code(name: str, steps: int = 10, first: int = 0, ranks: int = 1) -> str:
    """The code that opens and closes an engine's window."""
    how = engine_of(name).capture
    return filled(code_of(how.window.code), values(how, steps, first or how.first, ranks))


def printed(*arguments: str) -> str:
    done = pack("capture-command", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(*arguments: str) -> str:
    done = pack("capture-command", *arguments)
    assert done.returncode == 1
    assert done.stderr.startswith("ERROR: ") and done.stderr.count("\n") == 1
    return done.stderr


def words(text: str) -> list[str]:
    """The words that a shell makes of a command."""
    shell = f'printf "%s\\0" {text}'
    return subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True).stdout.split("\0")[:-1]


# The real nsys.


@pytest.mark.parametrize("name", ["train", "vllm"])  # between them they use every flag
def test_the_real_nsys_takes_the_printed_command(name, asked, tmp_path):
    command = command_for(name, asked, program=(sys.executable, "-c", "print('it' + ' ran')"))
    done = subprocess.run(["bash", "-c", command.text()], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "it ran" in done.stdout
    assert "unrecognised" not in done.stderr


def test_a_flag_that_the_real_nsys_lacks_is_refused_by_it(asked, tmp_path):
    """What the test above would not see if nsys took anything."""
    done = subprocess.run(
        [asked.executable, "profile", "--no-such-flag=1", "true"], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode != 0


def test_each_rank_gets_its_own_report(asked, tmp_path):
    """srun is a stand-in that starts two tasks; nsys and the shell are real."""
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/bash\nshift 2\nfor rank in 0 1; do SLURM_PROCID=$rank "$@" || exit 1; done\n')
    srun.chmod(0o755)
    command = command_for("train", asked, ranks=2, launcher="slurm", program=(sys.executable, "-c", "print(1)"))
    # Without CUDA nothing opens the window, and no report would be written at all.
    text = re.sub(r"    --capture-range\S+ \\\n", "", command.text())
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["bash", "-c", text], cwd=tmp_path, env=env, capture_output=True, check=False)
    made = {file.name.partition(".")[0] for file in tmp_path.glob("train_rank*")}
    assert made == {"train_rank0", "train_rank1"}
    assert all(file.match(command.reports) for file in tmp_path.glob("*.nsys-rep"))


def test_the_real_help_is_understood(asked):
    by_table = nsight_of_release(asked.release)
    assert [flag.name for flag in flags() if by_table.has(flag) and not asked.has(flag)] == []
    assert not asked.has(Flag("--capture-range-end", "never", (2022, 4), "window", "", ""))
    assert not asked.has(Flag("--no-such-flag", "none", (2022, 4), "always", "", ""))
    assert "cudaProfilerApi" in asked.help["--capture-range"]
    assert "repeat" not in asked.help["--capture-range"]  # that is of the next flag


def test_the_help_decides_not_the_version(asked):
    without = {name: text for name, text in asked.help.items() if name not in ("--wait", "--cuda-graph-trace")}
    without["--capture-range-end"] = "--capture-range-end=\n Possible values are 'none' or 'stop-shutdown'."
    command = command_for("vllm", Nsight("nsys", "2026.1", without))
    assert not {"--wait=primary", "--cuda-graph-trace=node"} & set(command.nsys)
    assert [flag.name for flag in command.missing if flag.lost] == [
        "--cuda-graph-trace",
        "--capture-range-end",  # it knows the flag, but `stop` only as a part of another word
        "--wait",
    ]


def test_no_end_of_a_window_without_a_window(asked):
    """The real nsys refuses --capture-range-end alone."""
    without = {name: text for name, text in asked.help.items() if name != "--capture-range"}
    command = command_for("train", Nsight("nsys", "2026.1", without))
    assert not [word for word in command.nsys if word.startswith("--capture-range")]
    assert {"--capture-range", "--capture-range-end"} <= {flag.name for flag in command.missing}


# What is printed.


def test_without_an_engine_the_choices():
    lines = printed().splitlines()
    assert [line.split()[0] for line in lines[: len(NAMES)]] == NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ranks", [1, 4])
def test_every_page_is_whole(name, ranks, nsys):
    text = printed(name, "--ranks", str(ranks), "--nsys", str(nsys))
    command = text.partition("\n\n")[2].partition("\n\n")[0]
    assert subprocess.run(["bash", "-n", "-c", command], check=False).returncode == 0
    assert "profile" in words(command)
    assert "$" not in text.replace("$rank", "")
    assert "Window. " in text and "Steps. " in text and "llm_capture_check --input" in text
    for word in words(command):
        if word.startswith("--") and word.partition("=")[0] in {flag.name for flag in flags()}:
            assert word.partition("=")[0] in text.partition("\n\n")[2].replace(command, "")  # explained


def test_command_only_is_the_command():
    text = printed("vllm", "--ranks", "2", "--command-only", "--nsys-version", "2023.4")
    assert words(text.rstrip("\n")) == [
        "VLLM_WORKER_MULTIPROC_METHOD=spawn",
        "nsys",
        "profile",
        "--trace=cuda,nvtx",
        "--sample=none",
        "--cpuctxsw=none",
        "--cuda-graph-trace=node",
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop",
        "--trace-fork-before-exec=true",
        "--wait=primary",
        "--output=vllm",
        "vllm",
        "serve",
        "MODEL",
        "--tensor-parallel-size",
        "2",
        "--profiler-config",
        '{"profiler": "cuda", "max_iterations": 10}',
    ]


def test_another_machine_s_release():
    assert "--cuda-event-trace=false" not in printed("train", "--nsys-version", "2024.2", "--command-only")
    assert "--cuda-event-trace=false" in printed("train", "--nsys-version", "2025.3.1", "--command-only")
    assert "was not asked" in printed("train", "--nsys-version", "2025.3.1")
    assert "'12' is no release" in refused("train", "--nsys-version", "12")
    assert "oldest known is 2022.4" in refused("train", "--nsys-version", "2021.5")


def test_no_nsys_at_all(monkeypatch, capsys):
    monkeypatch.setattr(capture_command, "_at_hand", lambda: None)
    nsight, remarks = capture_command._nsight(None, None)
    assert nsight.executable == "nsys" and "no nsys on this machine" in remarks[0]
    assert all(nsight.has(flag) for flag in flags())


def test_an_nsys_that_does_not_tell_its_flags(tmp_path):
    nsys = tmp_path / "nsys"
    nsys.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "NVIDIA Nsight Systems version 2024.5.1.113"\n')
    nsys.chmod(0o755)
    text = printed("train", "--nsys", str(nsys))
    assert "by the pack's table" in text and "--cuda-graph-trace=node" in text
    assert f"{nsys} profile" in text
    assert "no nsys at" in refused("train", "--nsys", str(tmp_path / "none"))


def test_a_target_side_alone_says_what_becomes_of_a_capture(nsys, tmp_path):
    """As Debian's nsight-systems-target without nsight-systems: reports are made by the other package."""
    target = tmp_path / "target-linux-x64"
    target.mkdir()
    for file in nsys.resolve().parent.iterdir():
        if file.name != "nsys":
            (target / file.name).symlink_to(file)
    shutil.copy2(nsys.resolve(), target / "nsys")
    text = printed("train", "--nsys", str(target))
    assert "no QdstrmImporter" in text and ".qdstrm" in text


# The user's own command.


def test_nsys_goes_inside_the_users_launcher():
    command = command_for("train", program=TORCHRUN)
    assert command.before == ("torchrun", "--nproc-per-node", "8", "--no-python")
    assert command.program == ("python3", "train.py", "--name", "two words")
    assert command.nsys[-1] == "--output=train_rank%q{RANK}"
    assert "torch.distributed.barrier()" in window_code("train", ranks=command.request.ranks)


def test_one_report_goes_around_the_launcher():
    command = command_for("train", program=TORCHRUN, one_report=True)
    assert (command.before, command.program) == ((), TORCHRUN)
    assert command.nsys[-1] == "--output=train" and command.reports == "train.nsys-rep"
    own = command_for("train", ranks=2, one_report=True)
    assert own.program == ("torchrun", "--standalone", "--nproc-per-node", "2", "train.py")
    script = command_for("train", ranks=2, one_report=True, launcher="torchrun", program=("bash", "run.sh"))
    assert script.program[-3:] == ("--no-python", "bash", "run.sh")


@pytest.mark.parametrize(
    ("program", "before", "inside", "ranks"),
    [
        ("torchrun --nnodes 2 --nproc_per_node=4 -m a.b", "torchrun --nnodes 2 --nproc_per_node=4 --no-python", 3, 8),
        ("torchrun --no-python --nproc-per-node 2 ./run.sh", "torchrun --no-python --nproc-per-node 2", 1, 2),
        ("srun -N 2 -n 16 --mpi=pmix python train.py", "srun -N 2 -n 16 --mpi=pmix", 2, 16),
        ("mpirun -np 4 -x PATH bash run.sh", "mpirun -np 4 -x PATH", 2, 4),
        ("python train.py", "", 2, 1),
        (
            "python3 -m torch.distributed.run --nproc-per-node 2 train.py",
            "python3 -m torch.distributed.run --nproc-per-node 2 --no-python",
            2,
            2,
        ),
        ("python3 -m my.torch.distributed", "", 3, 1),
        ("torchrun --nnodes 2 --nproc-per-node 2 train.py", "torchrun --nnodes 2 --nproc-per-node 2 --no-python", 2, 4),
        ("torchrun --nproc-per-node 2 --module a.b", "torchrun --nproc-per-node 2 --no-python", 3, 2),
        ("srun python train.py", "srun", 2, 2),  # several, as the job says
    ],
)
def test_launchers_of_users(program, before, inside, ranks):
    command = command_for("train", program=tuple(program.split()))
    assert shlex.join(command.before) == before
    assert len(command.program) == inside
    assert command.request.ranks == ranks


@pytest.mark.parametrize(
    ("output", "flag", "reports"),
    [
        ("run", "run_rank%q{RANK}", "run_rank*.nsys-rep"),
        ("my run", "my run_rank%q{RANK}", "'my run_rank'*.nsys-rep"),
        ("run_%h_%q{RANK}.nsys-rep", "run_%h_%q{RANK}.nsys-rep", "run_*_*.nsys-rep"),
    ],
)
def test_names_of_reports(output, flag, reports):
    command = command_for("train", ranks=2, output=output)
    assert command.nsys[-1] == f"--output={flag}"
    assert f"--output={flag}" in words(command.text())
    assert command.reports == reports


def test_an_unclear_command_is_refused_with_a_way_out():
    assert "--launcher" in refused("train", "--", "srun", "-n", "2", "my_program")
    assert "--ranks N" in refused("megatron", "--", "srun", "python", "pretrain_gpt.py")
    assert "--ranks N" in refused("megatron", "--", "torchrun", "--nnodes=1:4", "--nproc-per-node=8", "p.py")
    assert "one command starts all its ranks" in refused("vllm", "--", "srun", "vllm", "serve", "X")
    assert "leave --one-report out" in refused("train", "--ranks", "2", "--launcher", "slurm", "--one-report")


def test_arguments_that_the_user_gives_are_left_alone():
    own = ("vllm", "serve", "a model", "--profiler-config.profiler", "cuda")
    assert command_for("vllm", program=own).program == own
    assert "Your command sets these itself" in printed("vllm", "--", *own)
    added = command_for("vllm", program=own[:3]).program
    assert added[3] == "--profiler-config"


def test_every_rank_of_megatron_opens_its_window():
    words_of = command_for("megatron", ranks=4, steps=5, first=7).program
    place = words_of.index("--profile-ranks")
    assert words_of[place : place + 5] == ("--profile-ranks", "0", "1", "2", "3")
    # Iterations 7 to 11 lie between the start of 7 and the start of 12.
    assert words_of[words_of.index("--profile-step-end") + 1] == "12"


def test_tensorrt_llm_counts_both_ends():
    command = command_for("trtllm", steps=5, first=100, ranks=2, launcher="mpi")
    assert ("TLLM_PROFILE_START_STOP", "100-104") in [entry[:2] for entry in command.environment]
    assert command.before[3:5] == ("-x", "TLLM_PROFILE_START_STOP")


@pytest.mark.parametrize("name", [name for name in launchers() if name != "none"])
def test_rank_variables_are_those_that_reports_are_read_by(name):
    from recipes.report.facts import _RANK_IN_NAME, _RANK_VARIABLES

    assert launchers()[name].rank_variable in _RANK_VARIABLES
    assert _RANK_IN_NAME.findall(command_for("train", ranks=2, launcher=name).reports.replace("*", "3")) == ["3"]


# The code, run against a stand-in for torch; the rules are the real ones.


class Recorder:
    """What code does with torch: calls in order."""

    def __init__(self):
        self.calls: list[str] = []

    def module(self) -> SimpleNamespace:
        def say(name: str):
            return lambda *_: self.calls.append(name)

        @contextlib.contextmanager
        def named(text: str):
            self.calls.append(f"range {text}")
            yield

        profiler = SimpleNamespace(start=say("start"), stop=say("stop"))
        cuda = SimpleNamespace(synchronize=say("synchronize"), profiler=profiler, nvtx=SimpleNamespace(range=named))
        return SimpleNamespace(cuda=cuda, distributed=SimpleNamespace(barrier=say("barrier")))


def run_code(code: str, monkeypatch, **known) -> tuple[list[str], dict]:
    recorder = Recorder()
    monkeypatch.setitem(sys.modules, "torch", recorder.module())
    exec(compile(code, "printed code", "exec"), known)
    return recorder.calls, known


def phase_of(texts: list[str]) -> set[str]:
    """The phases that the first rule which two of the texts match gives, as the pack chooses rules."""
    for rule in load_phase_rules():
        found = [rule.meaning(text) for text in texts]
        if sum(meaning is not None for meaning in found) >= ENOUGH:
            return {meaning.phase for meaning in found if meaning}
    return set()


@pytest.mark.parametrize(
    ("name", "phase", "known"),
    [
        ("train", "train step", {"loader": range(40), "train_one_step": lambda batch: None}),
        (
            "pytorch",
            "decode",
            {"max_new_tokens": 40, "batch": 8, "prompt_tokens": 100, "decode_one_step": lambda: None},
        ),
    ],
)
def test_the_window_holds_whole_steps_that_the_rules_name(name, phase, known, monkeypatch):
    calls, _ = run_code(window_code(name, steps=3, first=5, ranks=2), monkeypatch, **known)
    window = calls[calls.index("start") + 1 : calls.index("stop")]
    # All profilers run before the first step begins.
    assert calls[calls.index("start") - 1] == "synchronize"
    assert window[:2] == ["barrier", "synchronize"]
    assert window[-1] == "synchronize"
    ranges = [call.removeprefix("range ") for call in window if call.startswith("range")]
    assert len(ranges) == 3
    assert calls.index("start") == 6  # five steps before it, then the synchronisation
    assert phase_of(ranges) == {phase}
    assert calls.count("start") == calls.count("stop") == 1


def test_the_kv_length_of_a_decode_step_is_read_back(monkeypatch):
    known = {"max_new_tokens": 10, "batch": 8, "prompt_tokens": 100, "decode_one_step": lambda: None}
    calls, _ = run_code(window_code("pytorch", steps=2, first=3), monkeypatch, **known)
    assert "barrier" not in calls
    rule = next(rule for rule in load_phase_rules() if rule.name == "inference")
    meaning = rule.meaning(calls[calls.index("start") + 1].removeprefix("range "))
    assert (meaning.batch, meaning.tokens, meaning.kv_tokens) == (8, 8, 8 * 103)


def test_megatron_s_steps_get_their_name(monkeypatch):
    training = SimpleNamespace(train_step=lambda number: number + 1)
    for module in ("megatron", "megatron.training"):
        monkeypatch.setitem(sys.modules, module, SimpleNamespace(training=training))
    calls, _ = run_code(code_of(engine_of("megatron").ranges.code), monkeypatch)
    assert [training.train_step(1), training.train_step(2)] == [2, 3]
    assert phase_of([call.removeprefix("range ") for call in calls]) == {"train step"}


@pytest.mark.parametrize("name", NAMES)
def test_range_names_in_the_texts_mean_what_they_say(name):
    for text, phase in engine_of(name).ranges.examples.items():
        assert phase_of([text, text]) == {phase}, text


@pytest.mark.parametrize("name", ["vllm", "sglang", "trtllm"])
def test_shell_code_is_shell_code(name):
    code = window_code(name, steps=7)
    assert subprocess.run(["bash", "-n", "-c", code], check=False).returncode == 0
    assert name != "sglang" or '"num_steps": 7' in code


# The data.


def test_data_is_whole():
    for name, engine in captured_engines().items():
        how = engine.capture
        assert how.program and how.launchers and how.window.how and engine.ranges.how and engine.ranges.examples, name
        assert how.sources and all(source.startswith("https://") for source in how.sources), name
        assert {*how.launchers, *how.launcher_options} <= set(launchers()), name
        assert set(how.flags) <= {flag.name for flag in flags() if flag.used == "engine"}, name
        for text in (how.window, engine.ranges):
            assert not text.code or (FOLDER / "code" / text.code).is_file(), name


def test_no_advice_for_an_engine_that_is_not_there():
    with pytest.raises(PackError, match="no advice for an engine 'jax'; there are train, pytorch, vllm"):
        window_code("jax")


def test_first_step_is_refused_where_it_means_nothing():
    done = pack("capture-command", "vllm", "--first", "50")
    assert done.returncode == 1
    assert done.stderr == "ERROR: --first means nothing for a vLLM server: its window opens when it is asked to\n"
    for engine in ("train", "pytorch", "trtllm", "megatron"):
        assert "50" in pack("capture-command", engine, "--first", "50", "--nsys-version", "2025.3").stdout


def test_launchers_behind_nsys_and_windows_that_never_open_are_told():
    said = pack("capture-command", "train", "--nsys-version", "2025.3", "--", "accelerate", "launch", "train.py").stdout
    assert "accelerate starts the ranks behind nsys: all ranks of a machine are in one report" in said
    assert "the window never opened" in said
