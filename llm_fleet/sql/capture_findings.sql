-- What is wrong with the captures of each run, most common first, and what helps: findings of llm_capture_check on single
-- reports, and on the reports of a run as a set (then reports is 0). message and remedy are of one of these findings.
--
-- A row: one kind of finding in one run
--   run_name  string  the run
--   severity  string  error: there are no numbers; warn: some are wrong or missing
--   check     string  what was checked, see llm_capture_check
--   reports   int64   reports with it; 0 for findings about the reports as a set
--   message   string  what was found, in one of them
--   remedy    string  the command or code that helps in that one

WITH told AS MATERIALIZED (
    SELECT run_name, report_key, version, "check", severity, message, remedy FROM files_of('findings')
),
findings AS (
    FROM told SEMI JOIN reports USING (run_name, report_key, version)
    UNION ALL
    FROM told SEMI JOIN runs USING (run_name, version)
)
SELECT
    run_name, severity, "check",
    count(DISTINCT report_key) AS reports,
    first(message ORDER BY message NULLS LAST, remedy NULLS LAST) AS message,
    first(remedy ORDER BY message NULLS LAST, remedy NULLS LAST) AS remedy
FROM findings
WHERE severity IN ('error', 'warn')
GROUP BY run_name, severity, "check"
ORDER BY run_name, severity, reports DESC, "check";
