-- Which runs the dataset holds, the newest first.

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
