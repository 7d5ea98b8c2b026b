-- What the GPUs waited for, day by day (UTC): idle time by cause, and its share of the time looked at.

WITH whole AS (
    SELECT
        run_name, report_key, captured, window_ns,
        profiler_ns, graph_ns, sync_ns, api_ns, host_ns, launch_ns, queued_ns, unknown_ns
    FROM of_reports('idle')
    WHERE phase = 'all'
),
causes AS (
    UNPIVOT whole
    ON profiler_ns, graph_ns, sync_ns, api_ns, host_ns, launch_ns, queued_ns, unknown_ns
    INTO NAME cause VALUE idle_ns
)
SELECT
    left(captured, 10) AS day,
    replace(cause, '_ns', '') AS cause,
    count(DISTINCT run_name) AS runs,
    count(DISTINCT (run_name, report_key)) AS reports,
    sum(idle_ns)::BIGINT AS idle_ns,
    sum(window_ns)::BIGINT AS window_ns,
    sum(idle_ns) / nullif(sum(window_ns), 0) AS share
FROM causes
GROUP BY ALL
ORDER BY day, idle_ns DESC, cause;
