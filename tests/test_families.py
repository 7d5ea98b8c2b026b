"""The kernel families: accuracy on labelled names, the rules as data, and rule files of users."""

from __future__ import annotations

import csv
import json
import re
import time
from collections import defaultdict
from pathlib import Path

import pytest

from recipes.base.errors import PackError
from recipes.kernels.families import GROUPS, LONGEST, PACKAGED, TELLING, load_rules, plain

DATA = Path(__file__).parent / "data"
COARSE = {"communication", "attention", "gemm", "norm/activation", "optimizer", "memory", "other"}


def read_table(path):
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("# ")]
    return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


NAMES = read_table(DATA / "kernels.tsv")
MORE = read_table(DATA / "kernels_more.tsv")
#: Names that were labelled by their source before any rule for their kinds was written; tuned: 1 where rules followed.
UNSEEN = read_table(DATA / "kernels_unseen.tsv")
RULES = read_table(PACKAGED)


@pytest.fixture(scope="module")
def rules():
    return load_rules()


def wrong(rules, rows, spell=str):
    return [
        f"{row['family']} became {rules.classify(spell(row['name'])).family}: {spell(row['name'])[:150]}"
        for row in rows
        if rules.classify(spell(row["name"])).family != row["family"]
    ]


def assert_accuracy(rules, rows, share, spell=str):
    failed = wrong(rules, rows, spell)
    assert len(failed) <= (1 - share) * len(rows), f"{len(failed)} of {len(rows)} wrong:\n" + "\n".join(failed)


# Accuracy


def test_nearly_all_names_get_their_family(rules):
    assert len(NAMES) > 800
    assert_accuracy(rules, NAMES, 0.99)


def test_traps_get_their_family(rules):
    traps = [row for row in NAMES if row["trap"] == "1"]
    assert len(traps) > 200
    assert_accuracy(rules, traps, 0.95)


def test_every_large_family_is_found(rules):
    families = defaultdict(list)
    for row in NAMES:
        families[row["family"]].append(row)
    large = {family: rows for family, rows in families.items() if len(rows) >= 20}
    assert len(large) > 10
    for rows in large.values():
        assert_accuracy(rules, rows, 0.95)


def from_a_profile(row):
    return row["source"].startswith(("public ", "https://"))


def test_no_name_is_in_two_tables():
    names = [row["name"] for table in (NAMES, MORE, UNSEEN) for row in table]
    assert len(names) == len(set(names))


def test_rare_names_drawn_from_packages(rules):
    rows = [row for row in MORE if not from_a_profile(row)]
    assert len(rows) > 700
    assert_accuracy(rules, rows, 0.93)


def test_further_names_from_public_profiles(rules):
    rows = [row for row in MORE if from_a_profile(row)]
    assert len(rows) > 400
    assert_accuracy(rules, rows, 0.98)


@pytest.mark.parametrize("tuned", ["0", "1"])
def test_names_of_rare_kinds(rules, tuned):
    rows = [row for row in UNSEEN if row["tuned"] == tuned]
    assert len(rows) > 200
    assert_accuracy(rules, rows, 0.97)


def test_sorts_and_selections_of_cub_have_a_family(rules):
    rows = [row for row in (*NAMES, *MORE, *UNSEEN) if re.search(r"cub::(?:\w+::)*Device", row["name"])]
    assert len(rows) > 30
    assert {rules.classify(row["name"]).family for row in rows} == {"reduction"}


def test_arguments_of_cute_dsl_do_not_count(rules):
    name = "kernel_cutlass_kernel_minequantizeQuantizeKernel_object_at__tensorptrf16_TiledMMA_transpose_attention_norm"
    assert plain(name) == "kernel_cutlass_kernel_minequantizeQuantizeKernel"
    assert rules.classify(name).family == "quantization"


# Spellings


def as_kineto(name):
    name = re.sub(r"\((?:int|long|unsigned int|unsigned long)\)(-?\d+)", r"\1", name)
    name = name.replace("(bool)1", "true").replace("(bool)0", "false").replace("<unnamed>", "(anonymous namespace)")
    name = re.sub(r"\[lambda(\([^()]*\)) \(instance (\d+)\)\]", r"{lambda\1#\2}", name)
    return name.replace(" *", "*").replace(" &", "&").replace("operator ()", "operator()")


def as_nsys(name):
    name = re.sub(r"(?<=[<, ])(\d+)u?(?=[,>])", r"(int)\1", name)
    name = re.sub(r"(?<=[<, ])true(?=[,>])", "(bool)1", re.sub(r"(?<=[<, ])false(?=[,>])", "(bool)0", name))
    name = re.sub(r"\{lambda(\([^()]*\))#(\d+)\}", r"[lambda\1 (instance \2)]", name)
    return name.replace("(anonymous namespace)", "<unnamed>").replace("> >", ">>").replace("*", " *")


@pytest.mark.parametrize("spell", [as_kineto, as_nsys])
def test_spelling_of_the_profiler_does_not_matter(rules, spell):
    respelled = [row for row in NAMES if spell(row["name"]) != row["name"]]
    assert len(respelled) > 40
    assert_accuracy(rules, respelled, 0.98, spell)


def test_names_without_parameters(rules):
    with_parameters = [row for row in NAMES if ">(" in row["name"] and "at::native" not in row["name"]]
    assert len(with_parameters) > 100
    assert_accuracy(rules, with_parameters, 0.98, lambda name: name[: name.rindex(">(") + 1])


def function_name(name):
    return re.split("[<(]", plain(name))[0].split("::")[-1]


def test_short_names(rules):
    # The function's own name decides where it is not a wrapper that takes its work as an argument.
    wrappers = re.compile("elementwise|reduce_kernel|device_kernel|Kernel2?$|multi_tensor|unary_kernel|^kernel|^[^_]*$")
    rows = [row for row in NAMES if "::" in row["name"] and not wrappers.search(function_name(row["name"]))]
    assert len(rows) > 150
    assert_accuracy(rules, rows, 0.90, function_name)


@pytest.mark.parametrize(
    "name, length",
    [
        ("void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>(c10::BFloat16*, c10::BFloat16 const*, long)", 25),
        ("void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<96, 64, 64, 4, false>>", 60),
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::Coll", 60),
        ("void cublasLt::splitKreduce_kernel<(int)32, (int)16, int, float, __half, float, __half, (bool)0>", 60),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::silu_kernel(at::T", 100),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy_vectorized<at::native::(anonymous name", 60),
        ("void marlin_moe_wna16::Marlin<__nv_bfloat16, 562949953487106l, 2814749767106568l, 128, 1, 8, 4>", 60),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 30),
    ],
)
def test_names_cut_off_by_a_table(rules, name, length):
    cut = name[:length] + "..."
    assert rules.classify(cut).family == rules.classify(name).family != "other"


@pytest.mark.parametrize(
    "name, family",
    [
        ("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_", "copy"),
        ("_ZN2at6native29vectorized_elementwise_kernelILi8EZNS0_25bfloat16_copy_kernel_cudaERNS_18Te", "copy"),
        ("_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIN3c108BFloat16ENS0_9ArgMaxOpsIfEEjl", "sampling"),
        ("_ZN2at6native29vectorized_elementwise_kernelILi4EZZZNS0_15cos_kernel_cudaERNS_18TensorIte", "elementwise"),
        (
            "_ZN2at6native53_GLOBAL__N__21739cd4_20_layer_norm_kernel_cu_9c5ada8a28vectorized_layer_norm_kernelIN3c"
            "108BFloat16EfLb1EEEviT0_PKT_S8_S8_PS5_S9_PS6_",
            "norm",
        ),
        (
            "_ZN2at6native62_GLOBAL__N__7d4ed096_23_ActivationSiluKernel_cu_751192d7_1559526CatArrayBatchedCopy_alig"
            "nedINS1_",
            "copy",
        ),
        ("_ZN8cublasLt19splitKreduce_kernelILi32ELi16Eif13__nv_bfloat16fS1_Lb0EfS1_S1_Lb1ELb0ELb0ELb0EEE", "gemm"),
        ("_ZN4vllm15rms_norm_kernelIN3c108BFloat16ELi8ELi2EEEvPT_PKS3_lllllS6_fii", "norm"),
        ("_ZN10flashinfer4norm21FusedAddRMSNormKernelILj8E6__halfEEvPT0_S3_S3_jjjff", "norm"),
        ("_ZN7cutlass13device_kernelIN5flash20enable_sm90_or_laterINS1_16FlashAttnFwdSm90I", "attention"),
        ("_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalIN4cute5tupleIJiiiiEEENS1_10collective", "gemm"),
    ],
)
def test_mangled_names(rules, name, family):
    assert rules.classify(name).family == family


def test_plain_spelling():
    assert plain("void (anonymous namespace)::f<int>(int)") == "f<int>(int)"
    assert plain("std::enable_if<(8>0), void>::type vllm::f<c10::BFloat16>(int)") == "vllm::f<c10::BFloat16>(int)"
    assert plain("_ZN4vllm3f_xI6__halfEEvPT_") == "vllm::f_x<__half"
    assert plain("_Z") == "" and plain("") == ""


# The rules as data


def test_every_rule_has_its_columns():
    for row in RULES:
        assert row["family"] in GROUPS and all(row[column] for column in ("source", "example", "not_example")), row


def test_no_pattern_twice():
    patterns = [row["pattern"] for row in RULES]
    assert len(patterns) == len(set(patterns)) > 50


@pytest.mark.parametrize("row", RULES, ids=lambda row: f"{row['family']}-{row['pattern'][:40]}")
def test_a_rule_wins_its_example_and_not_its_near_miss(rules, row):
    won = rules.classify(row["example"])
    assert (won.family, won.rule.split(" ", 1)[1]) == (row["family"], row["pattern"])  # so it is reachable
    assert rules.classify(row["not_example"]).family != row["family"]


def test_the_rule_text_points_to_its_line(rules):
    where, pattern = rules.classify("nvjet_hsh_128x8_64x12_2x1_v_bz_TNT").rule.split(" ", 1)
    file, number = where.split(":")
    assert PACKAGED.name == file
    assert PACKAGED.read_text().splitlines()[int(number) - 1].startswith(pattern + "\tgemm\t")


def test_groups_are_the_seven_coarse_ones(rules):
    assert set(GROUPS.values()) == COARSE
    assert {row["family"] for row in NAMES} <= set(GROUPS)
    assert rules.classify("rotary_kernel").group == "norm/activation"
    assert rules.classify("vllm::reshape_and_cache_kernel").group == "memory"


def test_a_name_that_no_rule_knows(rules):
    assert rules.classify("zzz") == rules.classify("") == ("other", "other", "")


# Speed


def test_a_name_takes_less_than_milliseconds():
    names = [row["name"] for row in NAMES]
    fresh = load_rules()
    best = _seconds(lambda: [fresh.classify(name) for name in names])
    assert best / len(names) < 3e-3  # about 0.3 ms on one core; the rest is for slow machines


@pytest.mark.parametrize(
    "name",
    [
        "a" * 100_000,
        "_" * 100_000,
        "<" * 100_000,
        "at::native::" * 9_000,
        "_Z" + "9a" * 50_000,
        "triton_poi_fused_" + "add_mul_" * 12_000,
        "moe_gemm_attn_quant_norm_softmax_" * 3_000,
        "append_" * 15_000,
        "std::enable_if<" * 7_000,
        "(anonymous namespace)::" * 4_500,
    ],
    ids=lambda name: name[:20],
)
def test_a_hostile_name_takes_no_time(rules, name):
    assert _seconds(lambda: rules.classify(name)) < 0.5


def _seconds(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def test_only_the_start_of_a_name_is_read(rules):
    assert rules.classify("x" * TELLING + "nvjet_").family == "other"


def test_the_users_rules_read_further(tmp_path):
    rules = loaded(tmp_path, "mine\tmy_family\n")
    assert rules.classify("x" * (LONGEST - 4) + "mine").family == "my_family"
    assert rules.classify("x" * LONGEST + "mine").family == "other"


# Rule files of users


def loaded(tmp_path, text, file="mine.tsv", choice=""):
    path = tmp_path / file
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_rules(Path(f"{path}{choice}"))


def test_rules_of_the_user_come_first(tmp_path):
    rules = loaded(tmp_path, "# mine\r\n\r\nrotary\tmy_rope\r\nSoft.*<unnamed>\tsmooth\tme\n")
    assert rules.classify("rotary_kernel") == ("my_rope", "other", "mine.tsv:3 rotary")
    assert rules.classify("void softly::<unnamed>::f<int>").family == "smooth"
    assert rules.classify("nvjet_hsh_128x8_64x12_2x1_v_bz_TNT").family == "gemm"


def test_a_known_family_of_the_user_keeps_its_group(tmp_path):
    assert loaded(tmp_path, "my_reduce\tcommunication\n").classify("my_reduce").group == "communication"


def test_the_packaged_file_is_a_valid_user_file(tmp_path):
    rules = loaded(tmp_path, "\ufeff" + PACKAGED.read_text())
    assert rules.classify("rotary_kernel").rule.startswith("mine.tsv:")


VLLM = {"vllm": {"llama": {"gemm|nvjet": "gemm", "Norm": "my_norm", ".*": "misc"}}}
TWO = {"vllm": {"llama": {"Norm": "one"}, "ds": {"Norm": "two"}}, "sglang": {"llama": {"Norm": "three"}}}


def test_json_with_one_model(tmp_path):
    rules = loaded(tmp_path, json.dumps(VLLM), "mine.json")
    assert rules.classify("aNorm") == ("my_norm", "other", "mine.json:vllm/llama Norm")
    assert rules.classify("anorm").family == "norm"  # JSON rules mind case; the packaged rules follow
    assert rules.classify("rotary_kernel").family == "rope"  # the catch-all at the end is left out


def test_json_without_engine_and_model(tmp_path):
    assert loaded(tmp_path, '{"rotary": "turn"}').classify("rotary").rule == "mine.tsv rotary"


@pytest.mark.parametrize("choice, family", [("vllm/llama", "one"), ("vllm/ds", "two"), ("sglang/llama", "three")])
def test_json_with_a_selected_model(tmp_path, choice, family):
    assert loaded(tmp_path, json.dumps(TWO), "mine.json", f":{choice}").classify("Norm").family == family


@pytest.mark.parametrize("choice", ["", ":vllm", ":vllm/none"])
def test_json_that_needs_a_choice_names_the_choices(tmp_path, choice):
    with pytest.raises(PackError, match=r"mine\.json:engine/model; rule sets: sglang/llama, vllm/ds, vllm/llama"):
        loaded(tmp_path, json.dumps(TWO), "mine.json", choice)


@pytest.mark.parametrize(
    "text, message",
    [
        ("ok\tgemm\n(\tgemm\n", r"mine.tsv:2: '\(' is not a regular expression"),
        ("gemm\n", "mine.tsv:1: no tab in this line; write"),
        ("\tgemm\n", "mine.tsv:1: the pattern is empty; write"),
        ("x \t \n", "mine.tsv:1: the family is ' '; write"),
        ("abc\tge\x07mm\n", "mine.tsv:1: the family is 'ge.x07mm'; write"),
        ("a\x07bc\tgemm\n", "mine.tsv:1: control character in the pattern"),
        (".*\tmisc\n", r"mine.tsv:1: '\.\*' matches every name"),
        ("\n\\w\tmisc\n", "mine.tsv:2: .* matches every name"),
        (b"abc\tg\xff\n", "mine.tsv: not UTF-8 at byte 5; save"),
        ("{", "mine.tsv: not valid JSON"),
        ("{}", "mine.tsv: select one rule set .* rule sets: none"),
        ('{"a": {"b": {"(": "gemm"}}}', r"mine.tsv:a/b: '\(' is not a regular expression"),
        ('{"a": {"b": {"x": 3}}}', "mine.tsv:a/b: the family is 3; write"),
        ('{"a": {"b": {"x": ""}}}', "mine.tsv:a/b: the family is ''; write"),
        ('{"": "gemm"}', "mine.tsv: the pattern is empty; write"),
        ('{".*": "misc", "x": "gemm"}', r"mine.tsv \.\*: matches every name .* move it to the end"),
        ('{"x": "gemm", "y": {"z": "norm"}}', "mine.tsv: the family is {'z': 'norm'}; write"),
    ],
)
def test_a_bad_rule_file_is_one_line(tmp_path, text, message):
    with pytest.raises(PackError, match=message) as caught:
        loaded(tmp_path, text)
    assert len(str(caught.value).splitlines()) == 1


def test_a_missing_rule_file(tmp_path):
    with pytest.raises(PackError, match=r"none\.tsv: cannot read the rule file: No such file or directory; check"):
        load_rules(tmp_path / "none.tsv")


def test_a_folder_is_no_rule_file(tmp_path):
    with pytest.raises(PackError, match="cannot read the rule file: Is a directory"):
        load_rules(tmp_path)


def test_a_table_has_nothing_to_select(tmp_path):
    with pytest.raises(PackError, match="not JSON, so 'vllm/llama' selects nothing"):
        loaded(tmp_path, "a\tb\n", choice=":vllm/llama")
