"""NVTX ranges as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recipes.events.devices import pid_of
from recipes.report import schema
from recipes.report.report import Report, numbers

#: Event types of NVTX_EVENTS: push and pop on one thread, start and end anywhere, the same two in NVTXT files; domain.
_PUSH_POP, _START_END, _DOMAIN = (59, 70), (60, 71), 75
# PyTorch's emit_nvtx appends what differs from call to call.
_APPENDED = r", (?:seq|op_id|sizes|input_op_ids) = .*"


@dataclass(frozen=True)
class Ranges:
    """All NVTX ranges of a report, in order of start.

    start_ns, end_ns int64, end_ns of a range that was never closed is the last time in the report; global_tid
    int64; pid int64; text int32, an index into `texts`; domain int32, an index into `domains`; closed bool;
    by_thread bool, true for ranges that are pushed and popped on one thread.
    """

    start_ns: np.ndarray
    end_ns: np.ndarray
    global_tid: np.ndarray
    pid: np.ndarray
    text: np.ndarray
    domain: np.ndarray
    closed: np.ndarray
    by_thread: np.ndarray
    texts: list[str]
    domains: list[str]

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True)
class Payloads:
    """Push and pop ranges of one library, in order of start, with what it put on them.

    start_ns, end_ns, global_tid, domain_id int64; name int32, an index into `names`; payload int32, an index into
    `payloads` (JSON texts), -1 for none; payload_bytes binary, the same as the program left it, null for none.
    """

    start_ns: np.ndarray
    end_ns: np.ndarray
    global_tid: np.ndarray
    name: np.ndarray
    payload: np.ndarray
    names: list[str]
    payloads: list[str]
    domain_id: np.ndarray
    payload_bytes: pa.Array

    def code(self, name: str) -> int:
        """The code of a name, -1 if no range has it."""
        return self.names.index(name) if name in self.names else -1


def read_payloads(report: Report, prefix: str) -> Payloads:
    """The closed ranges whose text begins with a prefix, whatever their domain. PackError for a damaged export."""
    columns = ["start_ns", "end_ns", "event_type", "domain_id", "global_tid", "text", "payload", "payload_bytes"]
    events = report.read(schema.NVTX, columns)
    text = events["text"].combine_chunks()
    chosen = pc.starts_with(text.dictionary, prefix).fill_null(False).to_numpy(zero_copy_only=False)
    code = text.indices.fill_null(-1).to_numpy()
    kind, start_ns, end_ns = (numbers(events[name], -1) for name in ("event_type", "start_ns", "end_ns"))
    rows = np.flatnonzero(np.append(chosen, False)[code] & np.isin(kind, _PUSH_POP) & (end_ns >= start_ns))
    rows = rows[np.argsort(start_ns[rows], kind="stable")]
    payload = events["payload"].combine_chunks()
    return Payloads(
        start_ns=start_ns[rows],
        end_ns=end_ns[rows],
        global_tid=numbers(events["global_tid"], 0)[rows],
        name=code[rows],
        payload=payload.indices.fill_null(-1).to_numpy()[rows],
        names=text.dictionary.to_pylist(),
        payloads=payload.dictionary.to_pylist(),
        domain_id=numbers(events["domain_id"], 0)[rows],
        payload_bytes=events["payload_bytes"].combine_chunks().take(pa.array(rows)),
    )


def read_ranges(report: Report, last_ns: int) -> Ranges:
    """The ranges of a report; `last_ns` is where ranges end that were never closed. PackError when its export is
    damaged."""
    columns = ["start_ns", "end_ns", "event_type", "domain_id", "global_tid", "text"]
    events = report.read(schema.NVTX, columns)
    kind = events["event_type"].combine_chunks()
    rows = pc.is_in(kind, pa.array([*_PUSH_POP, *_START_END]))
    ranges = events.filter(pc.and_(pc.fill_null(rows, False), pc.is_valid(events["start_ns"])))
    ranges = ranges.take(pc.sort_indices(ranges["start_ns"]))
    start_ns, end_ns = numbers(ranges["start_ns"], 0), numbers(ranges["end_ns"], -1)
    closed = (end_ns >= start_ns) & ranges["end_ns"].is_valid().to_numpy()
    global_tid = numbers(ranges["global_tid"], 0)
    text, texts = _texts(ranges["text"].combine_chunks())
    domain, domains = _domains(events.filter(pc.equal(kind, _DOMAIN)), global_tid, numbers(ranges["domain_id"], 0))
    return Ranges(
        start_ns=start_ns,
        end_ns=np.where(closed, end_ns, np.maximum(last_ns, start_ns)),
        global_tid=global_tid,
        pid=pid_of(global_tid),
        text=text,
        domain=domain,
        closed=closed,
        by_thread=np.isin(numbers(ranges["event_type"], 0), _PUSH_POP),
        texts=texts,
        domains=domains,
    )


def ranges_by_domain(ranges: Ranges) -> dict[str, int]:
    """How many ranges each domain has that has any."""
    counts = np.bincount(ranges.domain, minlength=len(ranges.domains)).tolist()
    return {name: count for name, count in zip(ranges.domains, counts, strict=True) if count}


def commonest_names(ranges: Ranges, count: int = 3) -> list[str]:
    """The texts that most ranges have, the commonest first."""
    counts = np.bincount(ranges.text, minlength=len(ranges.texts))
    order = np.argsort(-counts, kind="stable")[:count]
    return [ranges.texts[code] for code in order.tolist() if counts[code]]


def _texts(text: pa.DictionaryArray) -> tuple[np.ndarray, list[str]]:
    """A code per range and the text of each code, without what emit_nvtx appends."""
    cut = pc.replace_substring_regex(text.dictionary, _APPENDED, "").dictionary_encode()
    codes = cut.indices.take(text.indices).fill_null(len(cut.dictionary))
    return codes.to_numpy(), [*cut.dictionary.to_pylist(), ""]


def _domains(created: pa.Table, global_tid: np.ndarray, domain_id: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """A code per range and the name of each domain. Domain ids count per process; 0 is the default domain."""
    known = {
        (int(pid), domain): name or ""
        for pid, domain, name in zip(
            pid_of(numbers(created["global_tid"], 0)).tolist(),
            created["domain_id"].to_pylist(),
            created["text"].to_pylist(),
            strict=True,
        )
    }
    names = sorted({"", *known.values()})
    domain = np.zeros(len(global_tid), dtype=np.int32)
    pid = pid_of(global_tid)
    for (process, number), name in known.items():
        domain[(pid == process) & (domain_id == number)] = names.index(name)
    return domain, names
