-- Which kinds of kernels the GPU time of each run goes to, phase by phase.
-- time_ns is summed durations over all reports and devices of the run; share is of the run's phase.

SELECT
    run_name,
    phase,
    family,
    count(DISTINCT report_key) AS reports,
    sum(calls)::BIGINT AS calls,
    sum(time_ns)::BIGINT AS time_ns,
    sum(exclusive_ns)::BIGINT AS exclusive_ns,
    sum(time_ns) / sum(sum(time_ns)) OVER (PARTITION BY run_name, phase) AS share
FROM of_reports('families')
GROUP BY run_name, phase, family
ORDER BY run_name, phase, time_ns DESC, family;
