"""The floor of a decode step: bytes that must be read over the memory bandwidth, for one rank.

    floor      = (weight bytes read + KV bytes read) / bandwidth          all sizes and rates of one rank
    expected   = the same with the experts that uniform routing would read; the floor takes the fewest possible
    attainable = floor / 0.85                                              0.85 is chosen and stated, never hidden
    shortcut   = bytes of all weights / bandwidth                          the usual figure; embedding included
    MBU        = floor / duration            (Agarwal et al., Databricks, "LLM Inference Performance Engineering")
    MFU        = FLOP / (duration x peak)    ridge = peak / bandwidth: below it memory is the limit

The floor says nothing of communication, launches or compute; a step below it has a wrong input, which
`below_floor` names. Nothing is clipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from recipes.base.errors import PackError
from recipes.models.flop import decode_flop
from recipes.models.kv_cache import Contexts, Summed, kv_bytes
from recipes.models.layout import SINGLE, Layout, check_layout
from recipes.models.model import Model
from recipes.models.model_bytes import EXPECTED, checkpoint_bytes, read_bytes

#: What the largest matrices reach of the data-sheet bandwidth: 84 to 89 % from A100 to GB300, measured by
#: ai-dynamo/aiconfigurator (gemm_perf tables, BF16, weights from 1 GB). Small matrices reach 55 to 70 %.
ATTAINABLE = 0.85

#: Twice the largest L2 cache (B200 126 MB, RTX PRO 6000 128 MB): of less than this a good part may stay in it
#: from one step to the next.
CACHED_BYTES = 256e6


@dataclass(frozen=True)
class Step:
    """What a decode step does: `batch` sequences (None if unknown) with `context` tokens each (one number, or one a
    sequence, or all together as `Summed`, or None if unknown), `tokens_per_step` new tokens a sequence (more than 1
    with speculation), and the dtype of the KV cache (None: the model's).
    """

    batch: float | None
    context: Contexts | None = None
    tokens_per_step: float = 1
    kv_dtype: str | None = None

    @property
    def tokens(self) -> float:
        """New tokens of all sequences, at least."""
        return (self.batch or 1) * self.tokens_per_step


@dataclass(frozen=True)
class Floor:
    """The floor of one kind of step on one rank. Bytes, FLOP and bytes per second; times in ns.

    `weight_bytes` are read at least, whatever the routing; `expected_weight_bytes` with uniform routing, None without
    experts or batch. `kv_bytes` is None when batch, context or the cache's shape is unknown: the floor is that of the
    weights alone. `flop` is None when no parameters or no batch are known, the times are None when the bandwidth is.
    `shortcut_bytes` are this rank's share of all weights, the input embedding and every expert included.
    """

    model: Model
    step: Step
    layout: Layout
    weight_bytes: float
    expected_weight_bytes: float | None
    kv_bytes: float | None
    flop: float | None
    shortcut_bytes: float
    bandwidth_bytes_per_s: float | None
    attainable: float = ATTAINABLE
    remarks: tuple[str, ...] = ()

    @property
    def read_bytes(self) -> float:
        """Weights and, as far as known, KV."""
        return self.weight_bytes + (self.kv_bytes or 0)

    @property
    def weight_ns(self) -> float | None:
        """The floor of the weights alone."""
        return self._ns(self.weight_bytes)

    @property
    def kv_ns(self) -> float | None:
        """The floor of the KV cache alone: also that of the attention kernels."""
        return None if self.kv_bytes is None else self._ns(self.kv_bytes)

    @property
    def floor_ns(self) -> float | None:
        return self._ns(self.read_bytes)

    @property
    def expected_floor_ns(self) -> float | None:
        """The floor with the experts that uniform routing would read."""
        expected = self.expected_weight_bytes
        return None if expected is None else self._ns(expected + (self.kv_bytes or 0))

    @property
    def attainable_ns(self) -> float | None:
        return None if self.floor_ns is None else self.floor_ns / self.attainable

    @property
    def shortcut_ns(self) -> float | None:
        """All weights over the bandwidth: what is usually quoted."""
        return self._ns(self.shortcut_bytes)

    @property
    def flop_per_byte(self) -> float | None:
        """Arithmetic intensity."""
        return None if self.flop is None else self.flop / self.read_bytes

    def _ns(self, size: float) -> float | None:
        return None if self.bandwidth_bytes_per_s is None else size / self.bandwidth_bytes_per_s * 1e9

    def ridge(self, peak_flop_per_s: float) -> float | None:
        """FLOP a byte from which on compute is the limit."""
        return None if self.bandwidth_bytes_per_s is None else peak_flop_per_s / self.bandwidth_bytes_per_s

    def ratio(self, duration_ns: float) -> float | None:
        """Duration over floor: how many times longer the step took. Not checked; see `below_floor`."""
        return None if self.floor_ns is None else duration_ns / self.floor_ns

    def mfu(self, duration_ns: float, peak_flop_per_s: float) -> float | None:
        """Model FLOP utilisation of the step, a share of 1. PackError when it is above 1."""
        return None if self.flop is None else flop_utilisation(self.flop, duration_ns, peak_flop_per_s)


def flop_utilisation(flop: float, duration_ns: float, peak_flop_per_s: float) -> float:
    """FLOP over what the peak allows in the duration, a share of 1. PackError when it is above 1."""
    _check_duration(duration_ns)
    share = flop / (duration_ns * 1e-9 * peak_flop_per_s)
    if share > 1:
        raise PackError(
            f"MFU {share:.0%}: {flop / 1e12:.3g} TFLOP in {duration_ns / 1e6:.3g} ms is above the peak of"
            f" {peak_flop_per_s / 1e12:.4g} TFLOP/s; check the batch or tokens, the model, tp and the peak's dtype"
        )
    return share


def floor_of(
    model: Model,
    step: Step,
    bandwidth_bytes_per_s: float | None,
    layout: Layout = SINGLE,
    attainable: float = ATTAINABLE,
) -> Floor:
    """The floor of a step of the model on one rank of the layout.

    Of a pipeline without a chosen stage it is the stage that reads least, so that no rank can beat it. PackError
    for sizes that make no sense and for layouts that the model cannot have.
    """
    _check(step, bandwidth_bytes_per_s, attainable)
    check_layout(model, layout)
    remarks = list(model.remarks)
    if layout.pp > 1 and layout.stage is None:
        stages = [replace(layout, stage=stage) for stage in range(layout.pp)]
        layout = min(stages, key=lambda one: read_bytes(model, step.tokens, one))
        remarks.append(f"pipeline stage unknown: stage {layout.stage} of {layout.pp}, which reads least, is taken")
    cache = flop = expected = None
    if model.family is not None and step.batch is not None and step.context is not None:
        cache = kv_bytes(model, step.batch, step.context, step.kv_dtype, layout)
    if step.batch is not None:
        flop = decode_flop(model, step.batch, step.context, step.tokens_per_step, layout)
    if model.moe and step.batch is not None:
        expected = read_bytes(model, step.tokens, layout, EXPECTED)
    return Floor(
        model, step, layout, read_bytes(model, step.tokens, layout), expected, cache, flop,
        checkpoint_bytes(model) / (layout.pp * max(layout.tp, layout.ep)), bandwidth_bytes_per_s, attainable,
        (*remarks, *_limits(model, step, layout)),
    )  # fmt: skip


def _limits(model: Model, step: Step, layout: Layout) -> Iterator[str]:
    """What the floor leaves out for want of knowledge, in words."""
    if model.family is not None and None in (step.batch, step.context):
        what = "batch" if step.batch is None else "context"
        yield f"{what} unknown: the floor is that of reading the weights alone"
    if isinstance(step.context, Summed) and model.window and step.batch not in (None, 1):
        yield "only the sum of the contexts is known: windows are taken to read the least that any split of it allows"
    if model.moe and layout.ep > 1:
        yield "expert parallel: tokens may all go to other ranks' experts; the step waits for the rank that reads most"
    elif model.moe and step.tokens > 1:
        yield f"experts: all tokens may pick the same {model.moe.top_k} a layer, which is the least that can be read"


def _check(step: Step, bandwidth: float | None, attainable: float) -> None:
    for name, value in (("batch", step.batch), ("tokens per step", step.tokens_per_step)):
        if value is not None and not value >= 1:
            raise PackError(f"{name} is {value!r:.40}: give a number from 1")
    if bandwidth is not None and not bandwidth > 0:
        raise PackError(f"bandwidth is {bandwidth!r:.40}: give bytes per second above nothing")
    if not 0 < attainable <= 1:
        raise PackError(f"attainable is {attainable!r:.40}: give a share of the bandwidth above 0, up to 1")


def _check_duration(duration_ns: float) -> None:
    if not duration_ns > 0:
        raise PackError(f"a step of {duration_ns!r:.40} ns cannot be rated; give a duration above nothing")


def below_floor(floor: Floor, duration_ns: float) -> str | None:
    """One line that says which input is probably wrong when a step is shorter than its floor; else None.

    Each change that alone makes the step possible is named, as far as there are any.
    """
    _check_duration(duration_ns)
    width = floor.bandwidth_bytes_per_s
    if width is None or floor.floor_ns is None or duration_ns >= floor.floor_ns:
        return None
    batch = "batch unknown" if floor.step.batch is None else f"batch {floor.step.batch:g}"
    line = (
        f"{floor.model.name}, {batch}: the step took {duration_ns / 1e6:.4g} ms, below its floor of"
        f" {floor.floor_ns / 1e6:.4g} ms ({floor.floor_ns / duration_ns:.0%} of the bandwidth), so an input is wrong: "
    )
    causes = ", ".join(_causes(floor, duration_ns, width))
    line += f"each of these alone would allow it: {causes}; else check" if causes else "check"
    line += " the model and the bandwidth"
    if floor.read_bytes < CACHED_BYTES:
        line += f"; or {floor.read_bytes / 1e6:.0f} MB stay in the GPU's L2 cache in good part, then no input is wrong"
    return line


def _causes(floor: Floor, duration_ns: float, bandwidth: float) -> Iterator[str]:
    """The changes of one input, each of which would put the floor below the duration."""
    step, model = floor.step, floor.model
    if floor.kv_bytes and _could_be(floor, duration_ns, step=replace(step, context=None)):
        yield "a shorter context"
    if (step.batch or 1) > 1 and _could_be(floor, duration_ns, step=_one_sequence(step)):
        yield "a smaller batch"
    for tp in (2, 4, 8, 16):
        if tp > floor.layout.tp and _could_be(floor, duration_ns, layout=replace(floor.layout, tp=tp)):
            yield f"tp {tp}"
            break
    allowed = duration_ns * 1e-9 * bandwidth - (floor.kv_bytes or 0)
    for name, times in (("8-bit", 2), ("4-bit", 4)):
        if model.family and not model.quantization.method and floor.weight_bytes / times <= allowed:
            yield f"{name} weights"
            break


def _one_sequence(step: Step) -> Step:
    context = step.context
    if isinstance(context, Summed):
        context = context.tokens / (step.batch or 1)
    elif isinstance(context, Iterable):
        context = min(context)
    return replace(step, batch=1, context=context)


def _could_be(floor: Floor, duration_ns: float, step: Step | None = None, layout: Layout | None = None) -> bool:
    try:
        other = floor_of(floor.model, step or floor.step, floor.bandwidth_bytes_per_s, layout or floor.layout)
    except PackError:
        return False
    return other.floor_ns is not None and other.floor_ns <= duration_ns
