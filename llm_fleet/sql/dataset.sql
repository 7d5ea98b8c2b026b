-- Where the rows are, for querying a dataset by hand: run this first, then views.sql, in the same connection.
--
--     SET VARIABLE dataset = 'path or URL of the dataset';

CREATE OR REPLACE TEMP MACRO place() AS
-- Escapes glob characters; a URL's question mark starts its parameters and stays.
regexp_replace(
    getvariable('dataset'), if(contains(getvariable('dataset'), '://'), '([*[])', '([*?[])'), '[\1]', 'g'
);

CREATE OR REPLACE TEMP MACRO files_of(name) AS TABLE
SELECT *
FROM read_parquet(
    place() || '/table=' || name || '/*/*.parquet', union_by_name = true, hive_partitioning = false
);

CREATE OR REPLACE TEMP MACRO files_there() AS TABLE
SELECT replace(regexp_extract(file, 'table=[^/\\]+[/\\]run=[^/\\]+[/\\][^/\\]+$'), '\', '/') AS file
FROM glob(place() || '/table=*/*/*.parquet');
