-- Which captures not to trust, and why: those with limited numbers; copies, two reports of a run with the same content
-- (one counts); those with files missing, so that some rows are missing from the answers until they are added again; and
-- those dated more than a day in the future, which are left out of regressions.
--
-- A row: one report that has limited numbers, is there twice, lacks files, or has a wrong date
--   run_name  string  the run
--   report    string  the report
--   host      string  its host
--   rank      int64   its rank; null if unknown
--   captured  string  time of the capture, UTC
--   quality   string  ok, warn or bad
--   status    string  ok or empty
--   message   string  what limits its numbers
--   same_as   string  another report of the run with the same content; null for none
--   lost      string  tables whose files are missing for this report, comma-separated; null for none
--   future    bool    dated more than a day in the future: left out of regressions

WITH twins AS (
    SELECT run_name, version, min(report) AS first, max(report) AS last, count(*) AS copies
    FROM every_report
    GROUP BY run_name, version
),
told AS (
    SELECT
        *, CASE WHEN copies > 1 THEN if(report = first, last, first) END AS same_as, is_future(captured_ns) AS future
    FROM every_report
    JOIN twins USING (run_name, version)
    LEFT JOIN lost USING (run_name, report_key)
)
SELECT run_name, report, host, rank, captured, quality, status, message, same_as, lost, future
FROM told
WHERE quality <> 'ok' OR same_as IS NOT NULL OR lost IS NOT NULL OR future
ORDER BY quality, run_name, report, host, rank;
