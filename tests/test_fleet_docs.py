"""The examples of docs/fleet.md are what shells and Kubernetes read."""

from __future__ import annotations

import argparse
import re
import subprocess

import pytest

from conftest import ROOT
from recipes.base.pack import recipe_names
from recipes.run.modes import MODES
from recipes.run.recipe import load_recipe
from recipes.run.run import add_options

PAGE = (ROOT / "docs" / "fleet.md").read_text()


def examples(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def check_shell(text: str) -> None:
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("script", examples("bash"))
def test_scripts_are_shell(script):
    check_shell(script)
    # What a rank runs stands in quotes.
    for inner in re.findall(r"bash -c '(.*?)'", script, re.DOTALL):
        check_shell(inner)
    assert script.startswith("#!/bin/bash\n#SBATCH ")


@pytest.mark.parametrize("text", examples("yaml"))
def test_jobs_are_what_kubernetes_reads(text):
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load(text)
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    spec = job["spec"]
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    if "completionMode" in spec:
        assert spec["completions"] == spec["parallelism"]
    (container,) = pod["containers"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    assert all(isinstance(word, str) for word in (*container["command"], *container["args"]))
    if container["command"][0] == "bash":
        check_shell(container["args"][0])


def test_recipes_and_options_of_the_examples_exist():
    assert {"bash", "yaml"} <= set(re.findall(r"^```(\w+)", PAGE, re.MULTILINE))
    for name in re.findall(r"(?:nsys recipe|recipes run) (llm_\w+)", PAGE):
        assert name in recipe_names()
    parser = argparse.ArgumentParser()
    add_options(load_recipe("llm_idle_gaps"), parser.add_argument)
    known = {*parser._option_string_actions, "--mode"}
    commands = re.findall(r"(?:nsys recipe|recipes run) llm_\w+ (.*)", PAGE)
    used = {option for command in commands for option in re.findall(r"--[a-z-]+", command)}
    assert used and used <= known
    assert re.findall(r"--mode ([a-z-]+)", PAGE)[0] in MODES
