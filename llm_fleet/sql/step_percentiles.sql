-- How long steps take, by model, layout, phase, batch and GPU, and how far that is from the bandwidth floor. Where no model is known, a
-- run is kept separate and named; see slow_ranks.sql for layout, and for what it does not tell.
--
-- Percentiles are of the steps themselves (each step once per device, edge steps left out), not of reports' percentiles;
-- between two steps they are interpolated. floor_ratio_p50: median of duration / floor over steps that have a floor.
--
-- A row: one model, phase and batch on one GPU
--   model             string  the model; null if neither --model nor a tag gives it
--   run_name          string  the run, where no model is known; null otherwise
--   layout            string  ranks of the job, where the device communicates; `no communication` otherwise
--   phase             string  phase of the steps
--   batch             int64   sequences in a step; null if the ranges do not say
--   gpu_name          string  the GPU
--   runs              int64   runs
--   reports           int64   reports in these
--   steps             int64   steps, once per device; edge steps are excluded
--   periods           int64   steps with a following step, and so a period
--   period_p50_ns     double  median period (start to start)
--   period_p99_ns     double  its 99th percentile
--   duration_p50_ns   double  median projected duration
--   duration_p99_ns   double  its 99th percentile
--   floor_ratio_p50   double  median of duration / floor; null without --model
--   steps_with_floor  int64   steps in floor_ratio_p50

WITH floors AS (
    SELECT run_name, report_key, device, phase, batch, floor_ns FROM of_reports('floor') WHERE floor_ns > 0
)
SELECT
    model, of_run AS run_name, layout, steps.phase AS phase, steps.batch AS batch, steps.gpu_name AS gpu_name,
    count(DISTINCT steps.run_name) AS runs,
    count(DISTINCT (steps.run_name, steps.report_key)) AS reports,
    count(*) AS steps,
    count(period_ns) AS periods,
    quantile_cont(period_ns, 0.5) AS period_p50_ns,
    quantile_cont(period_ns, 0.99) AS period_p99_ns,
    quantile_cont(duration_ns, 0.5) AS duration_p50_ns,
    quantile_cont(duration_ns, 0.99) AS duration_p99_ns,
    median(duration_ns / floor_ns) AS floor_ratio_p50,
    count(floor_ns) AS steps_with_floor
FROM steps_that_count() AS steps
LEFT JOIN floors
    ON
        floors.run_name = steps.run_name AND floors.report_key = steps.report_key AND floors.device = steps.device
        AND floors.phase = steps.phase AND floors.batch IS NOT DISTINCT FROM steps.batch
GROUP BY model, of_run, layout, steps.phase, steps.batch, steps.gpu_name
ORDER BY ALL;
