-- What the GPUs waited for, day by day (UTC): idle time by cause, and its share of the analysed window. A cause that a
-- report lacks (one that an older pack did not know) is not 0: that report's window is not in the share.
--
-- A row: one cause of idle time on one day
--   day        string  day of the capture, UTC; null if unknown
--   cause      string  what the GPU waited for
--   runs       int64   runs
--   reports    int64   reports in these
--   idle_ns    int64   idle time of that cause, over all devices
--   window_ns  int64   windows of the reports that have this cause, over all devices
--   share      double  idle_ns divided by window_ns, 0 to 1

WITH whole AS (
    SELECT
        run_name, report_key, left(captured, 10) AS day, window_ns AS looked_at,
        COLUMNS('^(profiler|graph|sync|api|host|launch|queued|unknown)_ns$')
    FROM of_reports('idle')
    WHERE phase = 'all'
),
causes AS (
    UNPIVOT whole
    ON COLUMNS('_ns$')
    INTO NAME cause VALUE idle_ns
)
SELECT
    day,
    replace(cause, '_ns', '') AS cause,
    count(DISTINCT run_name) AS runs,
    count(DISTINCT (run_name, report_key)) AS reports,
    sum(idle_ns)::BIGINT AS idle_ns,
    sum(looked_at)::BIGINT AS window_ns,
    sum(idle_ns) / nullif(sum(looked_at), 0) AS share
FROM causes
GROUP BY day, cause
ORDER BY day, idle_ns DESC, cause;
