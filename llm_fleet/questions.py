"""The answers' tables. Each is worked out by the SQL file of its name, see answers.py."""

from __future__ import annotations

from recipes.base.tables import Column, Table

_RUN = Column("run_name", "string", "the run")
_GROUP = (
    Column("model", "string", "the model; null where neither --model nor a tag tells"),
    Column("layout", "string", "ranks of the job, where the device communicates; `no communication` otherwise"),
    Column("phase", "string", "phase of the steps"),
    Column("batch", "int64", "sequences in a step; null if the ranges do not tell"),
    Column("gpu_name", "string", "the GPU"),
)
_TOKENS = Column("tokens", "int64", "tokens of each of the steps, where these are compared by them; null otherwise")
_COUNTS = (Column("runs", "int64", "runs"), Column("reports", "int64", "reports in these"))

OVERVIEW = Table(
    "overview",
    "one run",
    (
        _RUN,
        Column("reports", "int64", "its reports"),
        Column("hosts", "int64", "hosts of these"),
        Column("ranks", "int64", "ranks of these"),
        Column("first_captured", "string", "when the first was captured, UTC; null if unknown"),
        Column("last_captured", "string", "when the last was captured, UTC"),
        Column("tags", "string", "tags, as JSON; `various` where its reports differ in them"),
        Column("doubtful", "int64", "reports with a limit, see doubtful_captures"),
        Column(
            "message", "string", "what could not be worked out over all its reports; null when that is not done yet"
        ),
    ),
)
FAMILY_SHARES = Table(
    "family_shares",
    "one family of GPU work in one phase of one run",
    (
        _RUN,
        Column("phase", "string", "phase of the model; `all` is the whole window, `outside` what is in no step"),
        Column("family", "string", "kind of kernel"),
        Column("reports", "int64", "reports with such work"),
        Column("calls", "int64", "operations"),
        Column("time_ns", "int64", "summed durations over all devices of the run"),
        Column("exclusive_ns", "int64", "what the family adds to the busy time"),
        Column("share", "double", "time_ns over that of all families in the run and phase, 0 to 1"),
    ),
)
SLOW_RANKS = Table(
    "slow_ranks",
    "one device of one report in one phase and batch",
    (
        _RUN,
        Column("report", "string", "the report"),
        Column("host", "string", "its host"),
        Column("rank", "int64", "its rank; null if unknown"),
        Column("device", "int64", "its device"),
        _GROUP[4],
        Column("gpu_uuid", "string", "its UUID; null where the report leaves that open"),
        *_GROUP[:4],
        _TOKENS,
        Column("steps", "int64", "steps that count; edges do not"),
        Column("own_ns", "double", "median over steps of busy time less exposed communication"),
        Column(
            "run_ns", "double", "median of that over the run's devices of the same model, layout, phase, batch, GPU"
        ),
        Column("above", "double", "own over run less 1; null for a device that is alone in its run"),
        Column(
            "z",
            "double",
            "0.6745 (above - median over the fleet) / MAD, or by the mean absolute deviation if MAD is 0; null for "
            "fewer than four devices, and where all are equal",
        ),
        Column(
            "compared",
            "int64",
            "devices compared, in all runs that have several (in this one, without a model)",
        ),
    ),
)
SLOW_HOSTS = Table(
    "slow_hosts",
    "one host",
    (
        Column("host", "string", "the host"),
        Column("reports", "int64", "its reports with steps that are compared with those of other hosts"),
        Column("devices", "int64", "devices in these"),
        Column("above", "double", "median over its devices of their median `above` in slow_ranks"),
        Column(
            "z", "double", "0.6745 (above - median over hosts) / MAD, as in slow_ranks; null for fewer than four hosts"
        ),
        Column("compared", "int64", "hosts compared"),
    ),
)
STEP_PERCENTILES = Table(
    "step_percentiles",
    "one model, phase and batch on one GPU",
    (
        _GROUP[0],
        Column("run_name", "string", "the run, where no model is known; null otherwise"),
        *_GROUP[1:],
        *_COUNTS,
        Column("steps", "int64", "steps on their devices; edges do not count"),
        Column("periods", "int64", "steps that have a next one, so that they have a period"),
        Column("period_p50_ns", "double", "median period of the steps"),
        Column("period_p99_ns", "double", "its 99th percentile"),
        Column("duration_p50_ns", "double", "median projected interval"),
        Column("duration_p99_ns", "double", "its 99th percentile"),
        Column("floor_ratio_p50", "double", "median of duration over floor; null without --model"),
        Column("steps_with_floor", "int64", "steps that this is of"),
    ),
)
IDLE_CAUSES = Table(
    "idle_causes",
    "one cause of idle time on one day",
    (
        Column("day", "string", "day of the capture, UTC; null if unknown"),
        Column("cause", "string", "what the GPU waited for"),
        *_COUNTS,
        Column("idle_ns", "int64", "idle time of that cause, over all devices"),
        Column("window_ns", "int64", "time looked at in reports that tell this cause, over all devices"),
        Column("share", "double", "idle over window, 0 to 1"),
    ),
)
DOUBTFUL_CAPTURES = Table(
    "doubtful_captures",
    "one report whose numbers are limited, or that is there twice, or lacks files, or has a wrong date",
    (
        _RUN,
        Column("report", "string", "the report"),
        Column("host", "string", "its host"),
        Column("rank", "int64", "its rank; null if unknown"),
        Column("captured", "string", "when it was captured, UTC"),
        Column("quality", "string", "ok, warn or bad"),
        Column("status", "string", "ok or empty"),
        Column("message", "string", "what limits it"),
        Column("same_as", "string", "another report of the run with the same content; null for none"),
        Column("lost", "string", "tables whose files of it are missing, comma-separated; null for none"),
        Column("future", "bool", "dated more than a day after now: left out of regressions"),
    ),
)
CAPTURE_FINDINGS = Table(
    "capture_findings",
    "one kind of finding in one run",
    (
        _RUN,
        Column("severity", "string", "error: there are no numbers; warn: some are wrong or missing"),
        Column("check", "string", "what was checked, see llm_capture_check"),
        Column("reports", "int64", "reports with it; 0 for what the reports show as a set"),
        Column("message", "string", "what was found, in one of them"),
        Column("remedy", "string", "the command or code that helps in that one"),
    ),
)
REGRESSIONS = Table(
    "regressions",
    "one model, phase and batch on one GPU, in the last two weeks",
    (
        *_GROUP[:4],
        _TOKENS,
        _GROUP[4],
        Column("runs_before", "int64", "runs of the week before the last seven days"),
        Column("runs_now", "int64", "runs of the last seven days up to the newest capture"),
        Column("before_ns", "double", "period then: geometric mean over runs"),
        Column("now_ns", "double", "period now"),
        Column("change", "double", "now over before less 1"),
        Column("low", "double", "lower end of its 95 % interval; null where there is no verdict"),
        Column("high", "double", "upper end"),
        Column(
            "verdict",
            "string",
            "slower, faster, no difference shown; or too few runs: fewer than three in a week, or all equal",
        ),
    ),
)
QUESTIONS = (
    OVERVIEW, FAMILY_SHARES, SLOW_RANKS, SLOW_HOSTS, STEP_PERCENTILES, IDLE_CAUSES, DOUBTFUL_CAPTURES, CAPTURE_FINDINGS,
    REGRESSIONS,
)  # fmt: skip
