"""The GPU table: names matched whole, bandwidth from the right source, nothing taken that is not to be trusted."""

from __future__ import annotations

import pytest

from recipes.base.errors import PackError
from recipes.kernels.hardware import PEAKS, bandwidth, choose_gpu, find_gpu, gpus, is_slice

H200_REPORT = 4814304000000


@pytest.mark.parametrize(
    ("name", "row", "terabytes_per_s"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM", 3.35),
        ("NVIDIA H100 PCIe", "H100 PCIe", 2.0),
        ("NVIDIA H100 NVL", "H100 NVL", 3.9),
        ("NVIDIA H200", "H200 SXM", 4.8),
        ("NVIDIA H200 NVL", "H200 NVL", 4.8),
        ("NVIDIA H20", "H20", 4.0),
        ("NVIDIA H20-3e", "H20-3e", 4.8),
        # The number is that of Grace's memory; the GPU has 96 GB.
        ("NVIDIA GH200 480GB", "GH200 96GB", 4.0),
        ("NVIDIA GH200 144G HBM3e", "GH200 144GB", 4.9),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM4 40GB", 1.555),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM4 80GB", 2.039),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40GB", 1.555),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB", 1.935),
        ("A100-SXM4-80GB", "A100 SXM4 80GB", 2.039),
        ("Tesla V100-SXM2-32GB", "V100 SXM2", 0.9),
        ("Tesla T4", "T4", 0.32),
        ("NVIDIA A10", "A10", 0.6),
        ("NVIDIA A10G", "A10G", 0.6),
        ("NVIDIA L4", "L4", 0.3),
        ("NVIDIA L40", "L40", 0.864),
        ("NVIDIA L40S", "L40S", 0.864),
        ("NVIDIA B200", "B200 SXM", 7.7),
        ("NVIDIA GB200", "GB200", 8.0),
        ("NVIDIA B300 SXM6 AC", "B300 SXM", 7.7),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell Server", 1.597),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Blackwell Workstation", 1.792),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX PRO 6000 Blackwell Max-Q", 1.792),
        ("NVIDIA GeForce RTX 4090", "RTX 4090", 1.008),
        ("NVIDIA GeForce RTX 4090 D", "RTX 4090 D", 1.008),
        ("NVIDIA GB10", "DGX Spark GB10", 0.273),
        ("  nvidia  h200 ", "H200 SXM", 4.8),
    ],
)
def test_report_names_find_their_row(name, row, terabytes_per_s):
    gpu = find_gpu(name)
    assert gpu.name == row
    assert gpu.bandwidth_bytes_per_s == pytest.approx(terabytes_per_s * 1e12)


@pytest.mark.parametrize(
    "name",
    [
        None,
        "",
        "NVIDIA H100",  # PCI 2339: another part than any in the table
        "Orin",  # AGX, NX and Nano all print this: 205, 102 and 68 GB/s
        "NVIDIA B100",  # never seen
        "NVIDIA A100-SXM-64GB",
        "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
        "MIG 1g.10gb",
        "GRID T4-8Q",
        "NVIDIA A100-4C",
        "NVIDIA L40S-48Q",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA RTX PRO 6000 Blackwell",
        "NVIDIA H2",
        "H100 SXM",  # the table's own name is for people to choose by
    ],
)
def test_other_names_find_nothing(name):
    assert find_gpu(name) is None


def test_every_row_is_whole():
    names = [name.lower() for gpu in gpus() for name in gpu.device_names]
    assert len(names) == len(set(names)) > 45
    assert len({gpu.name for gpu in gpus()}) == len(gpus())
    for gpu in gpus():
        assert 0.1e12 < gpu.bandwidth_bytes_per_s < 10e12
        assert gpu.source
        assert "recalled" not in gpu.name
        if gpu.fp16_bf16:  # what dense figures look like: never the sparse 2:4 ones
            assert gpu.tf32 is None or gpu.tf32 == pytest.approx(gpu.fp16_bf16 / 2, rel=0.02)
            # Ridge of the datasheets in FLOP per byte.
            assert 30 < gpu.fp16_bf16 / gpu.bandwidth_bytes_per_s < 1000


@pytest.mark.parametrize(
    ("name", "ridge"), [("A100 SXM4 80GB", 153), ("H100 SXM", 295), ("H200 SXM", 206), ("H20", 37), ("B200 SXM", 292),
                        ("L40S", 419), ("RTX 4090", 164), ("RTX 5090", 117)]
)  # fmt: skip
def test_ridge_points(name, ridge):
    gpu = choose_gpu(name)
    assert gpu.peak("bf16") / gpu.bandwidth_bytes_per_s == pytest.approx(ridge, abs=0.6)


def test_peaks_by_dtype():
    h100, a100, b200 = choose_gpu("H100 SXM"), choose_gpu("A100 SXM4 80GB"), choose_gpu("B200")
    assert h100.peak("bfloat16") == h100.peak("FP16") == 989.4e12
    assert h100.peak("fp8") == 1979e12
    assert h100.peak("nvfp4") is None
    assert a100.peak("fp8") is None
    assert b200.peak("nvfp4") == 9000e12
    assert h100.peak("no such dtype") is None
    assert set(PEAKS) == {"fp16_bf16", "tf32", "fp8", "fp4", "int8"}


def test_gpus_are_chosen_by_either_name():
    assert choose_gpu("h100 sxm").name == choose_gpu("NVIDIA H100 80GB HBM3").name == "H100 SXM"
    assert choose_gpu("H200").name == "H200 SXM"
    assert choose_gpu("orin").name == "Jetson AGX Orin 64GB"
    with pytest.raises(PackError, match=r"'A100': could be several; give one of A100 PCIe 40GB, A100 SXM4 40GB"):
        choose_gpu("A100")
    with pytest.raises(PackError, match="is not in the table; give one of V100"):
        choose_gpu("Radeon")
    with pytest.raises(PackError, match="is not in the table"):
        choose_gpu("")


def test_table_comes_before_the_report():
    found = bandwidth("NVIDIA H200", H200_REPORT, True)
    assert (found.bytes_per_s, found.source, found.remark) == (4.8e12, "table", "")


def test_both_are_shown_when_they_differ():
    found = bandwidth("NVIDIA B200", 8.184e12, True)  # an old driver's 8192 bits
    assert found.bytes_per_s == 7.7e12
    assert found.remark == "B200 SXM: 7.7 TB/s taken; the report says 8.184 TB/s"
    assert bandwidth("NVIDIA B200", 7.67232e12, True).remark == ""
    # Integrated: what the report says is nonsense and is not shown.
    assert bandwidth("NVIDIA GB10", 546e9, False).remark == ""


def test_report_is_taken_for_unknown_discrete_gpus_only():
    found = bandwidth("NVIDIA X1", 1.2e12, True)
    assert (found.bytes_per_s, found.source) == (1.2e12, "report")
    assert found.remark == "NVIDIA X1 is not in the pack's table: bandwidth as the report says"


@pytest.mark.parametrize(
    ("name", "reported", "discrete", "why"),
    [
        ("Orin", 39e9, False, "integrated GPUs is not to be trusted"),
        ("Orin", 204.8e9, False, "integrated GPUs is not to be trusted"),
        ("NVIDIA X1", 1.2e12, None, "integrated GPUs is not to be trusted"),
        ("NVIDIA X1", 0, True, "the report has no bandwidth"),
        ("NVIDIA X1", None, True, "the report has no bandwidth"),
        ("NVIDIA X1", 0.05e12, True, "0.05 TB/s in the report cannot be right"),
        ("NVIDIA X1", 21e12, True, "21 TB/s in the report cannot be right"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", 2.039e12, True, "a slice of a GPU"),
        ("GRID A100D-40C", 2.039e12, True, "a slice of a GPU"),
        (None, None, None, "the report has no bandwidth"),
    ],
)
def test_unknown_says_why(name, reported, discrete, why):
    found = bandwidth(name, reported, discrete)
    assert found.bytes_per_s is None
    assert found.source == ""
    assert why in found.remark
    assert found.remark.endswith("; give the GPU or its bandwidth")


def test_choices_come_first():
    assert bandwidth("NVIDIA H200", H200_REPORT, True, chosen_bandwidth=3e12).bytes_per_s == 3e12
    found = bandwidth("Orin", 39e9, False, chosen_gpu="Jetson AGX Orin 64GB")
    assert (found.bytes_per_s, found.source) == (204.8e9, "chosen")
    found = bandwidth("NVIDIA H200", H200_REPORT, True, chosen_gpu="H100 SXM")
    assert found.bytes_per_s == 3.35e12
    assert "the report says 4.814 TB/s" in found.remark
    for wrong in (3.35, 3350, 0, -1e12, float("nan")):
        with pytest.raises(PackError, match="bytes per second is not that of a memory"):
            bandwidth("NVIDIA H200", H200_REPORT, True, chosen_bandwidth=wrong)


def test_slices_by_name():
    assert is_slice("NVIDIA H100 80GB HBM3 MIG 3g.40gb")
    assert is_slice("NVIDIA A16-16Q")
    assert not any(is_slice(name) for gpu in gpus() for name in gpu.device_names)
