-- What the questions read: the rows of a dataset that count, the steps that are alike, and the statistics. It needs
-- `files_of` and `files_there`, which dataset.sql makes.
--
-- Rows count when their report does: a report's row in `reports` is written last. `of_reports('steps')` gives the rows
-- of a table that count, `of_runs('ranks')` those of a table over all reports of a run. Of two reports of a run with the
-- same content one counts, the first by report_key; `every_report` has both.

-- Columns that no file of an older dataset has are null.
CREATE OR REPLACE TEMP TABLE every_report AS
SELECT * FROM files_of('reports')
UNION ALL BY NAME
SELECT NULL::VARCHAR AS model, NULL::VARCHAR AS tags, NULL::VARCHAR AS tables, NULL::BIGINT AS world_size WHERE false;

CREATE OR REPLACE TEMP TABLE reports AS
SELECT * FROM every_report
QUALIFY row_number() OVER (PARTITION BY run_name, version ORDER BY report_key) = 1;

CREATE OR REPLACE TEMP MACRO of_reports(name) AS TABLE
SELECT * FROM files_of(name) SEMI JOIN reports USING (run_name, report_key, version);

CREATE OR REPLACE TEMP MACRO file_of(name, run, key, version) AS
'table=' || name || '/run=' || url_encode(run) || '/' || key || '.' || version || '.parquet';

-- The tables that files are missing of, for each report that lacks some.
CREATE OR REPLACE TEMP VIEW lost AS
SELECT run_name, report_key, string_agg(name, ',' ORDER BY place) AS lost
FROM (
    SELECT run_name, report_key, name, place, file_of(name, run_name, report_key, version) AS file
    FROM (
        SELECT
            run_name, report_key, version,
            unnest(string_split(tables, ',')) AS name, unnest(range(len(string_split(tables, ',')))) AS place
        FROM every_report
    )
)
ANTI JOIN files_there() USING (file)
GROUP BY run_name, report_key;

-- A run counts as long as its reports are those that it was worked out from, and its files are there.
CREATE OR REPLACE TEMP TABLE runs AS
WITH told AS (
    SELECT * FROM files_of('runs') UNION ALL BY NAME SELECT NULL::VARCHAR AS tables WHERE false
),
files AS (
    SELECT run_name, file_of(name, run_name, 'all-reports', version) AS file
    FROM (SELECT run_name, version, unnest(string_split(tables, ',')) AS name FROM told)
)
SELECT *
FROM told
SEMI JOIN (
    SELECT run_name, md5(string_agg(version, ',' ORDER BY report_key)) AS version FROM reports GROUP BY run_name
) USING (run_name, version)
ANTI JOIN (FROM files ANTI JOIN files_there() USING (file)) USING (run_name);

CREATE OR REPLACE TEMP MACRO of_runs(name) AS TABLE
SELECT * FROM files_of(name) SEMI JOIN runs USING (run_name, version);

-- The steps that count: edges may be incomplete. Where no model is known, of_run is the run that they may be compared in.
-- exposed_ns: communication that nothing overlaps. layout: how many ranks work together, as far as the report tells.
CREATE OR REPLACE TEMP MACRO steps_that_count() AS TABLE
SELECT
    steps.*, model, if(model IS NULL, run_name, NULL) AS of_run, coalesce(exposed_ns, 0) AS exposed_ns,
    CASE
        WHEN coalesce(max(calls) OVER (PARTITION BY run_name, report_key, device), 0) = 0 THEN 'no communication'
        ELSE coalesce(world_size || ' ranks', 'several ranks')
    END AS layout
FROM of_reports('steps') AS steps
JOIN (SELECT run_name, report_key, model, world_size FROM reports) USING (run_name, report_key)
LEFT JOIN (
    SELECT run_name, report_key, device, step, calls, exposed_ns FROM of_reports('step_communication')
) USING (run_name, report_key, device, step)
WHERE NOT edge AND device IS NOT NULL;

-- Those of them that may be compared with others of the same model, layout, phase, batch and GPU. Prefill and mixed steps
-- take as long as their prompts are, and so may steps without a batch: only those of a device whose tokens are all equal,
-- and only with the same (same_tokens), or, if they are neither prefill nor mixed, those that nobody knows the tokens of.
CREATE OR REPLACE TEMP MACRO steps_alike() AS TABLE
SELECT *, if(phase IN ('prefill', 'mixed') OR batch IS NULL, tokens, NULL) AS same_tokens
FROM steps_that_count()
WINDOW alike AS (PARTITION BY run_name, report_key, device, phase, batch)
QUALIFY
    (phase NOT IN ('prefill', 'mixed') AND (batch IS NOT NULL OR count(tokens) OVER alike = 0))
    OR (min(tokens) OVER alike = max(tokens) OVER alike AND count(tokens) OVER alike = count(*) OVER alike);

-- Each device's own time, by phase and batch, over the median of its run's devices alike. A run that is slow as a whole
-- (another driver, clock or commit) so makes no rank slow; a device without others in its run is compared with nobody.
CREATE OR REPLACE TEMP MACRO devices_alike() AS TABLE
WITH own AS (
    SELECT
        run_name, report_key, device, model, of_run, layout, phase, batch, same_tokens,
        any_value(gpu_uuid) AS gpu_uuid, gpu_name, count(*) AS steps, median(busy_ns - exposed_ns) AS own_ns
    FROM steps_alike()
    GROUP BY run_name, report_key, device, model, of_run, layout, phase, batch, same_tokens, gpu_name
),
in_run AS (
    SELECT
        own.*, report, host, rank,
        count(*) OVER same AS of_run_compared,
        min(host) OVER same < max(host) OVER same AS of_hosts,
        median(own_ns) OVER same AS run_ns
    FROM own
    JOIN (SELECT run_name, report_key, report, host, rank FROM reports) USING (run_name, report_key)
    WINDOW same AS (PARTITION BY run_name, model, layout, phase, batch, same_tokens, gpu_name)
),
compared AS (SELECT *, if(of_run_compared > 1, own_ns / nullif(run_ns, 0) - 1, NULL) AS above FROM in_run)
SELECT
    *,
    above - median(above) OVER same AS away,
    count(above) OVER same AS compared
FROM compared
WINDOW same AS (PARTITION BY model, of_run, layout, phase, batch, same_tokens, gpu_name);

-- How far a value is from the median in robust standard deviations (Iglewicz and Hoaglin 1993): by the median absolute
-- deviation or, where that is 0 since more than half of the values are equal, by the mean one. Null for fewer than four
-- values, and where all are equal.
CREATE OR REPLACE TEMP MACRO robust_z(away, median_away, mean_away, compared) AS
CASE
    WHEN compared < 4 THEN NULL
    WHEN median_away > 0 THEN 0.6745 * away / median_away
    ELSE away / nullif(1.2533 * mean_away, 0)
END;

-- Clocks that are more than a day ahead of ours are wrong.
CREATE OR REPLACE TEMP MACRO is_future(captured_ns) AS
coalesce(captured_ns > epoch_us(get_current_timestamp()) * 1000 + 86400000000000, false);
