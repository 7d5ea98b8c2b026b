-- Where the rows are, for those who ask a dataset by hand: run this and then views.sql first, in the same connection.
--
--     SET VARIABLE dataset = 'path or URL of the dataset';

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

CREATE OR REPLACE TEMP MACRO files_there() AS TABLE
SELECT replace(regexp_extract(file, 'table=[^/\\]+[/\\]run=[^/\\]+[/\\][^/\\]+$'), '\', '/') AS file
FROM glob(place() || '/table=*/*/*.parquet');
