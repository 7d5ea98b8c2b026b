-- Have steps become slower since last week? Runs of the seven days up to the newest capture against those of the seven days
-- before, for the same model, layout, phase, batch and GPU.
--
-- Reports without a model (--model or --tag model=NAME) are left out; see slow_ranks.sql for layout, and for what it
-- does not tell. Work that varies with the prompt is left out as in slow_ranks.sql; captures dated more than a day in
-- the future are too (see doubtful_captures). The same content in two runs is one run's, the first by name.
--
-- The independent unit is the run: its steps and its ranks depend on each other. A run's value is the median over its
-- devices of the logarithm of their median period (edge steps left out). change compares the means of the two weeks; low and high
-- are its 95 % interval, by Welch's t with the degrees of freedom rounded down. With fewer than three runs on a side, or runs
-- on a side that do not differ at all, there is no interval and no verdict. One true value in 20 is expected outside its
-- interval by chance alone.
--
-- A row: one model, phase and batch on one GPU, in the last two weeks
--   model        string  the model; null if neither --model nor a tag gives it
--   layout       string  ranks of the job, where the device communicates; `no communication` otherwise
--   phase        string  phase of the steps
--   batch        int64   sequences in a step; null if the ranges do not say
--   tokens       int64   tokens of each step, if steps are compared by tokens; null otherwise
--   gpu_name     string  the GPU
--   runs_before  int64   runs of the week before the last seven days
--   runs_now     int64   runs of the last seven days up to the newest capture
--   before_ns    double  period of the week before: geometric mean over runs
--   now_ns       double  period of the last seven days, likewise
--   change       double  now_ns / before_ns - 1
--   low          double  lower end of its 95 % interval; null where there is no verdict
--   high         double  upper end
--   verdict      string  slower, faster, no difference shown; or too few runs: fewer than three in a week, or all equal

WITH quantiles(df, t) AS (
    VALUES
    (1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (6, 2.447), (7, 2.365), (8, 2.306), (9, 2.262),
    (10, 2.228), (11, 2.201), (12, 2.179), (13, 2.160), (14, 2.145), (15, 2.131), (16, 2.120), (17, 2.110), (18, 2.101),
    (19, 2.093), (20, 2.086), (21, 2.080), (22, 2.074), (23, 2.069), (24, 2.064), (25, 2.060), (26, 2.056), (27, 2.052),
    (28, 2.048), (29, 2.045), (30, 2.042), (40, 2.021), (60, 2.000), (120, 1.980)
),
dated AS (
    SELECT run_name, report_key, captured_ns
    FROM reports
    WHERE NOT is_future(captured_ns)
    QUALIFY row_number() OVER (PARTITION BY version ORDER BY run_name, report_key) = 1
),
days AS (
    SELECT
        run_name,
        floor((max(max(captured_ns)) OVER () - max(captured_ns)) / (7 * 86400 * 1e9)) AS weeks_ago
    FROM dated
    WHERE captured_ns IS NOT NULL
    GROUP BY run_name
),
devices AS (
    SELECT
        run_name, report_key, device, model, layout, phase, batch, same_tokens,
        any_value(gpu_name) AS gpu_name, ln(median(period_ns)) AS log_ns
    FROM steps_alike()
    SEMI JOIN dated USING (run_name, report_key)
    WHERE period_ns > 0 AND model IS NOT NULL
    GROUP BY run_name, report_key, device, model, layout, phase, batch, same_tokens
),
by_run AS (
    SELECT model, layout, phase, batch, same_tokens AS tokens, gpu_name, run_name, weeks_ago, median(log_ns) AS log_ns
    FROM devices
    JOIN days USING (run_name)
    WHERE weeks_ago < 2
    GROUP BY ALL
),
weeks AS (
    SELECT
        model, layout, phase, batch, tokens, gpu_name,
        count(*) FILTER (weeks_ago = 1) AS runs_before,
        count(*) FILTER (weeks_ago = 0) AS runs_now,
        avg(log_ns) FILTER (weeks_ago = 1) AS before,
        avg(log_ns) FILTER (weeks_ago = 0) AS now,
        var_samp(log_ns) FILTER (weeks_ago = 1) / count(*) FILTER (weeks_ago = 1) AS error_before,
        var_samp(log_ns) FILTER (weeks_ago = 0) / count(*) FILTER (weeks_ago = 0) AS error_now
    FROM by_run
    GROUP BY model, layout, phase, batch, tokens, gpu_name
),
freedom AS (
    SELECT
        *,
        -- Runs that are equal but for the last bits of a double are equal.
        CASE
            WHEN least(runs_before, runs_now) > 2 AND least(error_before, error_now) > 1e-18 THEN
                greatest(1, floor(
                    (error_before + error_now) ** 2
                    / (error_before ** 2 / (runs_before - 1) + error_now ** 2 / (runs_now - 1)) + 1e-9
                ))
        END AS df
    FROM weeks
    WHERE runs_before > 0 AND runs_now > 0
),
bounds AS (
    SELECT
        *,
        (SELECT min(t) FROM quantiles WHERE quantiles.df <= freedom.df) * sqrt(error_before + error_now) AS half
    FROM freedom
)
SELECT
    model, layout, phase, batch, tokens, gpu_name, runs_before, runs_now,
    exp(before) AS before_ns,
    exp(now) AS now_ns,
    exp(now - before) - 1 AS change,
    exp(now - before - half) - 1 AS low,
    exp(now - before + half) - 1 AS high,
    CASE
        WHEN half IS NULL THEN 'too few runs'
        WHEN now - before - half > 0 THEN 'slower'
        WHEN now - before + half < 0 THEN 'faster'
        ELSE 'no difference shown'
    END AS verdict
FROM bounds
ORDER BY change DESC, model, layout, phase, batch, tokens, gpu_name;
