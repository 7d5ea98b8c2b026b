-- Which kinds of kernels the GPU time of each run goes to, phase by phase.
-- time_ns is summed durations over all reports and devices of the run; share is of the run's phase.
--
-- A row: one family of GPU work in one phase of one run
--   run_name      string  the run
--   phase         string  phase of the model; `all` is the whole window, `outside` what is in no step
--   family        string  kernel family
--   reports       int64   reports with such work
--   calls         int64   operations
--   time_ns       int64   summed durations over all devices of the run
--   exclusive_ns  int64   what the family adds to the busy time
--   share         double  share of the time_ns of all families in the run and phase, 0 to 1

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
