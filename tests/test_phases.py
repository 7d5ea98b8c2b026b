"""What NVTX ranges of engines and training loops say."""

from __future__ import annotations

import pytest

from recipes.base.errors import PackError
from recipes.steps.phases import USER_RULE, Meaning, load_phase_rules, packaged_lines

RULES = load_phase_rules()
LINES = packaged_lines()


def meaning(text, domain=""):
    """The rule that decides on a text, and what it says."""
    return next(((rule.name, found) for rule in RULES if (found := rule.meaning(text, domain))), (None, None))


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.example)
def test_example_is_read_by_its_own_rule(line):
    name, found = meaning(line.example, line.domain)
    assert name == line.rule
    assert line.phase in (found.phase, "<requests>", "<phase>")


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.not_example)
def test_near_miss_is_left_alone(line):
    (rule,) = (rule for rule in RULES if rule.name == line.rule)
    assert rule.meaning(line.not_example, line.domain) is None


def test_an_order_is_one_rule():
    """Else the order of files would decide, or lines of another rule could come between two of one."""
    rules = {line.rule for line in LINES}
    assert len({(line.order, line.rule) for line in LINES}) == len(rules) == len({line.order for line in LINES})


def test_rules_are_tried_in_their_order():
    """Names that tell numbers before those that tell a phase alone, engines' before the like of everyone."""
    assert [rule.name for rule in RULES] == [
        "vllm",
        "tensorrt-llm",
        "vllm-batches",
        "iterations",
        "sglang-steps",
        "inference",
        "sglang-scheduler",
        "megatron-bridge",
        "deepspeed",
        "verl",
        "pytorch-steps",
        "hand-made-training",
        "megatron-training",
        "xla",
        "hand-made-steps",
        "any-steps",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("execute_context_2(300)_generation_0(0)", Meaning("prefill", 2, 300)),
        ("execute_context_0(0)_generation_16(16)", Meaning("decode", 16, 16)),
        ("execute_context_0(0)_generation_16(48)", Meaning("decode", 16, 48)),
        ("execute_context_1(256)_generation_15(15)", Meaning("mixed", 16, 271)),
        ("execute_context_1_generation_15", Meaning("mixed", 16)),
        (
            "execute_271_context_1(sq256sk512sqsq65536sqsk131072)_generation_15(sq15sk9000sqsq15sqsk9000)",
            Meaning("mixed", 16, 271, 9512),
        ),
        ("execute_new_0_cached_8", Meaning("decode", 8)),
        ("[Executor] _forward_step 12: 3 ctx reqs, 512 ctx tokens, 0 gen reqs", Meaning("prefill", 3, 512, None, 12)),
        ("[Executor] _forward_step: 0 ctx reqs, 8 gen reqs", Meaning("decode", 8)),
        ("Decode", Meaning("decode")),
        ("decode bs=16", Meaning("decode", 16)),
        ("prefill bs=1 tokens=512", Meaning("prefill", 1, 512)),
        ("decode batch 4 kv=4096", Meaning("decode", 4, None, 4096)),
        ("vllm_iteration(7): decode", Meaning("decode", number=7)),
        ("step 17", Meaning("step", number=17)),
        ("Backward", Meaning("backward")),
    ],
)
def test_numbers_in_a_text_are_read(text, expected):
    assert meaning(text)[1] == expected


@pytest.mark.parametrize("text", ["", "lm_head + sample", "execute_context_0(0)_generation_0(0)", "ncclAllReduce"])
def test_what_is_no_step_has_no_meaning(text):
    assert meaning(text) == (None, None)


def test_domain_of_a_rule_must_fit():
    text = "XlaModule:#hlo_module=jit_train,program_id=3#"
    assert meaning(text, "TSL")[1] == Meaning("jit_train")
    assert meaning(text, "")[0] is None


def test_users_rules_come_first(tmp_path):
    path = tmp_path / "phases.tsv"
    path.write_text("pattern\tphase\ndecode bs=(?P<batch>\\d+)\tmy decode\nwarm.*\twarm-up\n")
    first = load_phase_rules(path)[0]
    assert first.name == USER_RULE
    assert first.meaning("Decode bs=8") == Meaning("my decode", 8)
    assert first.meaning("warming up") == Meaning("warm-up")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(\tdecode\n", r"phases\.tsv:1: '\(' is not a regular expression"),
        ("\n# note\nonly a pattern\n", r"phases\.tsv:3: no pattern or no phase"),
        ("", "no rules in this file"),
        ("a\xff\tb\n", "not UTF-8"),
    ],
)
def test_bad_rule_file_is_one_line_with_its_place(text, expected, tmp_path):
    path = tmp_path / "phases.tsv"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(PackError, match=expected):
        load_phase_rules(path)


def test_missing_rule_file(tmp_path):
    with pytest.raises(PackError, match="cannot read the rule file"):
        load_phase_rules(tmp_path / "none.tsv")
