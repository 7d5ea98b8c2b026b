-- What is wrong with the captures of each run, the commonest first, and what helps: findings of llm_capture_check on single
-- reports, and on the reports of a run as a set (then reports is 0). message and remedy are of one of these findings.

WITH findings AS (
    SELECT run_name, report_key, "check", severity, message, remedy FROM of_reports('findings')
    UNION ALL
    SELECT run_name, report_key, "check", severity, message, remedy FROM of_runs('findings')
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
