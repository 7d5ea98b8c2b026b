-- Which ranks take longer for their own work than the rest of the fleet does for the same.
--
-- own_ns: median over a device's steps (edges left out) of busy time less exposed communication, in which a rank mostly
-- waits for others: waiting spreads, own work does not. Compared with all devices of the dataset with the same model, phase,
-- batch and GPU, not those of one run only. z is robust: 0.6745 * (own - median) / MAD; null for fewer than four devices.

WITH communication AS (
    SELECT run_name, report_key, device, step, sum(time_ns) AS time_ns
    FROM of_reports('step_parts')
    WHERE part = 'communication'
    GROUP BY run_name, report_key, device, step
),
own AS (
    SELECT
        run_name, report_key, device, phase, batch,
        any_value(gpu_uuid) AS gpu_uuid, any_value(gpu_name) AS gpu_name,
        count(*) AS steps,
        median(busy_ns - coalesce(communication.time_ns, 0)) AS own_ns
    FROM of_reports('steps')
    LEFT JOIN communication USING (run_name, report_key, device, step)
    WHERE NOT edge AND device IS NOT NULL
    GROUP BY run_name, report_key, device, phase, batch
),
compared AS (
    SELECT
        own.*, report, host, rank, model,
        count(*) OVER same AS compared,
        median(own_ns) OVER same AS fleet_ns
    FROM own
    JOIN reports USING (run_name, report_key)
    WINDOW same AS (PARTITION BY model, phase, batch, own.gpu_name)
),
spread AS (
    SELECT
        *, median(abs(own_ns - fleet_ns)) OVER (PARTITION BY model, phase, batch, gpu_name) AS mad_ns
    FROM compared
)
SELECT
    run_name, report, host, rank, device, gpu_name, gpu_uuid, model, phase, batch, steps, own_ns, fleet_ns,
    own_ns / nullif(fleet_ns, 0) - 1 AS above,
    CASE WHEN compared >= 4 THEN 0.6745 * (own_ns - fleet_ns) / nullif(mad_ns, 0) END AS z,
    compared
FROM spread
ORDER BY z DESC NULLS LAST, above DESC NULLS LAST, run_name, report, device, phase, batch;
