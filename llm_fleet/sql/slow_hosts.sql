-- Which hosts are slow as a whole: the medians of their devices' own time over the fleet's (see slow_ranks.sql), host
-- beside host. z is robust over hosts: 0.6745 * (above - median) / MAD; null for fewer than four hosts.

WITH communication AS (
    SELECT run_name, report_key, device, step, sum(time_ns) AS time_ns
    FROM of_reports('step_parts')
    WHERE part = 'communication'
    GROUP BY run_name, report_key, device, step
),
own AS (
    SELECT
        run_name, report_key, device, phase, batch, any_value(gpu_name) AS gpu_name,
        median(busy_ns - coalesce(communication.time_ns, 0)) AS own_ns
    FROM of_reports('steps')
    LEFT JOIN communication USING (run_name, report_key, device, step)
    WHERE NOT edge AND device IS NOT NULL
    GROUP BY run_name, report_key, device, phase, batch
),
compared AS (
    SELECT
        host, run_name, report_key, device,
        own_ns / nullif(median(own_ns) OVER (PARTITION BY model, phase, batch, own.gpu_name), 0) - 1 AS above
    FROM own
    JOIN reports USING (run_name, report_key)
),
hosts AS (
    SELECT
        host,
        count(DISTINCT (run_name, report_key)) AS reports,
        count(DISTINCT (run_name, report_key, device)) AS devices,
        median(above) AS above
    FROM compared
    WHERE host IS NOT NULL
    GROUP BY host
),
middle AS (SELECT *, count(*) OVER () AS compared, median(above) OVER () AS fleet_above FROM hosts),
spread AS (SELECT *, median(abs(above - fleet_above)) OVER () AS mad FROM middle)
SELECT
    host, reports, devices, above,
    CASE WHEN compared >= 4 THEN 0.6745 * (above - fleet_above) / nullif(mad, 0) END AS z,
    compared
FROM spread
ORDER BY z DESC NULLS LAST, above DESC NULLS LAST, host;
