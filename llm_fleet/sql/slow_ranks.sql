-- Which ranks take longer for their own work than the rest of the fleet does for the same.
--
-- own_ns: median over a device's steps (edges left out) of busy time less exposed communication, in which a rank mostly
-- waits for others: waiting spreads, own work does not. Compared with all devices of the dataset with the same model, phase,
-- batch and GPU, not those of one run only; where no model is known, with those of the same run.
--
-- The model stands for all that makes steps alike: another layout (TP, PP, EP) or data type is another model, to be named so
-- (--tag model=NAME-tp8-fp8). Work that varies with the prompt is left out: prefill, mixed, and steps without a batch that
-- differ in tokens; steps of these that all have the same tokens are compared with others that have as many.
-- z is robust: 0.6745 * (own - median) / MAD or, where MAD is 0, (own - median) / (1.2533 * mean absolute deviation); null
-- for fewer than four devices, and where all are equal.

WITH spread AS (
    SELECT
        *,
        median(abs(own_ns - fleet_ns)) OVER same AS median_away_ns,
        avg(abs(own_ns - fleet_ns)) OVER same AS mean_away_ns
    FROM devices_alike()
    WINDOW same AS (PARTITION BY model, of_run, phase, batch, same_tokens, gpu_name)
)
SELECT
    run_name, report, host, rank, device, gpu_name, gpu_uuid, model, phase, batch, same_tokens AS tokens, steps, own_ns,
    fleet_ns, above,
    robust_z(own_ns - fleet_ns, median_away_ns, mean_away_ns, compared) AS z,
    compared
FROM spread
ORDER BY z DESC NULLS LAST, above DESC NULLS LAST, run_name, report, device, phase, batch, tokens;
