-- Which runs the dataset holds, the newest first.
--
-- A row: one run
--   run_name        string  the run
--   reports         int64   its reports
--   hosts           int64   distinct hosts
--   ranks           int64   distinct ranks
--   first_captured  string  time of the first capture, UTC; null if unknown
--   last_captured   string  time of the last capture, UTC
--   tags            string  tags, as JSON; `various` if its reports differ in them
--   doubtful        int64   reports with limited numbers, see doubtful_captures
--   message         string  what could not be computed over all its reports; null if not yet done

SELECT
    run_name,
    count(*) AS reports,
    count(DISTINCT host) AS hosts,
    count(DISTINCT rank) AS ranks,
    min(captured) AS first_captured,
    max(captured) AS last_captured,
    if(count(DISTINCT tags) > 1, 'various', min(tags)) AS tags,
    count(*) FILTER (quality <> 'ok') AS doubtful,
    any_value(of_run) AS message
FROM reports
LEFT JOIN (SELECT run_name, message AS of_run FROM runs) USING (run_name)
GROUP BY run_name
ORDER BY last_captured DESC NULLS LAST, run_name;
