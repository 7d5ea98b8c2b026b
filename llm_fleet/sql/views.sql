-- What the other questions read: run this first, in the same connection.
--
--     SET VARIABLE dataset = 'path or URL of the dataset';
--
-- Rows count when their report does: a report's row in `reports` is written last. `of_reports('steps')` gives the rows
-- of a table that count, `of_runs('ranks')` those of a table over all reports of a run.

CREATE OR REPLACE TEMP MACRO files_of(name) AS TABLE
SELECT *
FROM read_parquet(
    getvariable('dataset') || '/table=' || name || '/*/*.parquet', union_by_name = true, hive_partitioning = false
);

CREATE OR REPLACE TEMP VIEW reports AS SELECT * FROM files_of('reports');

CREATE OR REPLACE TEMP MACRO of_reports(name) AS TABLE
SELECT * FROM files_of(name) SEMI JOIN reports USING (run_name, report_key, version);

-- A run counts as long as its reports are those that it was worked out from.
CREATE OR REPLACE TEMP VIEW runs AS
SELECT *
FROM files_of('runs')
SEMI JOIN (
    SELECT run_name, md5(string_agg(version, ',' ORDER BY report_key)) AS version FROM reports GROUP BY run_name
) USING (run_name, version);

CREATE OR REPLACE TEMP MACRO of_runs(name) AS TABLE
SELECT * FROM files_of(name) SEMI JOIN runs USING (run_name, version);
