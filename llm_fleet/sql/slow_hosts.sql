-- Which hosts are slow as a whole: the medians of their devices' own time over their runs' (see slow_ranks.sql, also for
-- what is compared and what is left out), host by host.
--
-- Only from groups of at least four devices, in runs on more than one host: a host is not compared with itself. A device is one value,
-- the median over its groups, however many batches it ran. z is robust over hosts, as in slow_ranks; null for fewer than
-- four hosts, and where all are equal.
--
-- A row: one host
--   host      string  the host
--   reports   int64   its reports with steps that are compared with other hosts
--   devices   int64   devices in these
--   above     double  median over its devices of their median `above` in slow_ranks
--   z         double  0.6745 (above - median over hosts) / MAD, as in slow_ranks; null for fewer than four hosts
--   compared  int64   hosts compared

WITH devices AS (
    SELECT host, run_name, report_key, device, median(above) AS above
    FROM devices_alike()
    WHERE host IS NOT NULL AND compared >= 4 AND of_hosts
    GROUP BY host, run_name, report_key, device
),
hosts AS (
    SELECT host, count(DISTINCT (run_name, report_key)) AS reports, count(*) AS devices, median(above) AS above
    FROM devices
    GROUP BY host
),
middle AS (SELECT *, count(*) OVER () AS compared, above - median(above) OVER () AS away FROM hosts)
SELECT
    host, reports, devices, above,
    robust_z(away, median(abs(away)) OVER (), avg(abs(away)) OVER (), compared) AS z,
    compared
FROM middle
ORDER BY z DESC NULLS LAST, above DESC NULLS LAST, host;
