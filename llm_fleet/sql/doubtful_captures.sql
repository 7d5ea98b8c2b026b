-- Which captures are not to be trusted, and why. Two reports of a run with the same content are one capture twice.

WITH twins AS (
    SELECT run_name, version, min(report) AS first, max(report) AS last, count(*) AS copies
    FROM reports
    GROUP BY run_name, version
)
SELECT
    run_name, report, host, rank, captured, quality, status, message,
    CASE WHEN copies > 1 THEN if(report = first, last, first) END AS same_as
FROM reports
JOIN twins USING (run_name, version)
WHERE quality <> 'ok' OR copies > 1
ORDER BY quality, run_name, report, host, rank;
