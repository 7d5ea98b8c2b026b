-- What the other questions read: run this first, in the same connection.
--
--     SET VARIABLE dataset = 'path or URL of the dataset';
--
-- Rows count when their report does: a report's row in `reports` is written last. `of_reports('steps')` gives the rows
-- of a table that count, `of_runs('ranks')` those of a table over all reports of a run. Of two reports of a run with the
-- same content one counts, the first by report_key; `every_report` has both.

CREATE OR REPLACE TEMP MACRO place() AS
-- Signs that would mean any letters; behind a URL's question mark are its parameters.
regexp_replace(
    getvariable('dataset'), if(contains(getvariable('dataset'), '://'), '([*[])', '([*?[])'), '[\1]', 'g'
);

CREATE OR REPLACE TEMP MACRO files_of(name) AS TABLE
SELECT *
FROM read_parquet(
    place() || '/table=' || name || '/*/*.parquet', union_by_name = true, hive_partitioning = false
);

-- Columns that no file of an older dataset has are null.
CREATE OR REPLACE TEMP VIEW every_report AS
SELECT * FROM files_of('reports')
UNION ALL BY NAME
SELECT NULL::VARCHAR AS model, NULL::VARCHAR AS tags, NULL::VARCHAR AS tables WHERE false;

CREATE OR REPLACE TEMP VIEW reports AS
SELECT * FROM every_report
QUALIFY row_number() OVER (PARTITION BY run_name, version ORDER BY report_key) = 1;

CREATE OR REPLACE TEMP MACRO of_reports(name) AS TABLE
SELECT * FROM files_of(name) SEMI JOIN reports USING (run_name, report_key, version);

-- The files that are missing of reports and runs that count.
CREATE OR REPLACE TEMP MACRO files_there() AS TABLE
SELECT replace(regexp_extract(file, 'table=[^/\\]+[/\\]run=[^/\\]+[/\\][^/\\]+$'), '\', '/') AS file
FROM glob(place() || '/table=*/*/*.parquet');

CREATE OR REPLACE TEMP MACRO file_of(name, run, key, version) AS
'table=' || name || '/run=' || url_encode(run) || '/' || key || '.' || version || '.parquet';

CREATE OR REPLACE TEMP VIEW lost AS
SELECT run_name, report_key, name
FROM (
    SELECT run_name, report_key, name, file_of(name, run_name, report_key, version) AS file
    FROM (SELECT run_name, report_key, version, unnest(string_split(tables, ',')) AS name FROM every_report)
)
ANTI JOIN files_there() USING (file);

-- A run counts as long as its reports are those that it was worked out from, and its files are there.
CREATE OR REPLACE TEMP VIEW runs AS
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
CREATE OR REPLACE TEMP MACRO steps_that_count() AS TABLE
SELECT steps.*, model, if(model IS NULL, run_name, NULL) AS of_run
FROM of_reports('steps') AS steps
JOIN (SELECT run_name, report_key, model FROM reports) USING (run_name, report_key)
WHERE NOT edge AND device IS NOT NULL;

-- Those of them that may be compared with others of the same model, phase, batch and GPU. Prefill and mixed steps take as long
-- as their prompts are, and so may steps without a batch: only those of a device whose tokens are all equal, and only with
-- the same (same_tokens), or, if they are neither prefill nor mixed, those that nobody knows the tokens of.
CREATE OR REPLACE TEMP MACRO steps_alike() AS TABLE
SELECT *, if(phase IN ('prefill', 'mixed') OR batch IS NULL, tokens, NULL) AS same_tokens
FROM steps_that_count()
WINDOW alike AS (PARTITION BY run_name, report_key, device, phase, batch)
QUALIFY
    (phase NOT IN ('prefill', 'mixed') AND (batch IS NOT NULL OR count(tokens) OVER alike = 0))
    OR (min(tokens) OVER alike = max(tokens) OVER alike AND count(tokens) OVER alike = count(*) OVER alike);

-- Each device's own time, by phase and batch, beside that of all alike.
CREATE OR REPLACE TEMP MACRO devices_alike() AS TABLE
WITH communication AS (
    SELECT run_name, report_key, device, step, sum(time_ns) AS time_ns
    FROM of_reports('step_parts')
    WHERE part = 'communication'
    GROUP BY run_name, report_key, device, step
),
own AS (
    SELECT
        run_name, report_key, device, model, of_run, phase, batch, same_tokens,
        any_value(gpu_uuid) AS gpu_uuid, any_value(gpu_name) AS gpu_name,
        count(*) AS steps,
        median(busy_ns - coalesce(communication.time_ns, 0)) AS own_ns
    FROM steps_alike()
    LEFT JOIN communication USING (run_name, report_key, device, step)
    GROUP BY run_name, report_key, device, model, of_run, phase, batch, same_tokens
),
compared AS (
    SELECT
        own.*, report, host, rank,
        count(*) OVER same AS compared,
        min(host) OVER same < max(host) OVER same AS of_hosts,
        median(own_ns) OVER same AS fleet_ns
    FROM own
    JOIN (SELECT run_name, report_key, report, host, rank FROM reports) USING (run_name, report_key)
    WINDOW same AS (PARTITION BY model, of_run, phase, batch, same_tokens, gpu_name)
)
SELECT *, own_ns / nullif(fleet_ns, 0) - 1 AS above FROM compared;

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
