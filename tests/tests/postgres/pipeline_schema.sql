-- The tables of pipeline_sqlite.rs: one for each thing that a copy or a stream may get wrong.
CREATE TYPE mood AS ENUM ('sad', 'it''s ok');
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE TYPE pair AS (a int, b text);

CREATE TABLE types(
    id int PRIMARY KEY, b bool, i2 int2, i4 int4, i8 int8, o oid, f4 float4, f8 float8,
    n numeric, n2 numeric(12,3), t text, v varchar(20), c char(5), raw bytea, d date, tm time,
    tz timetz, ts timestamp, tstz timestamptz, iv interval, u uuid, j json, jb jsonb, ip inet,
    net cidr, mac macaddr, ia int[], ta text[], r int4range, bits bit(4), vb varbit, pt point,
    tsv tsvector, m mood, p pair, ch "char", nm name, l pg_lsn);
-- Values that round 0 and later ones insert under new ids.
CREATE TABLE samples AS TABLE types;
INSERT INTO samples VALUES
    (1, true, 1, 2, 3, 4, 0.1, 0.1, 1.10, 5.5, 'text', 'vary', 'ab', '\x00ff', '2024-02-29',
     '12:34:56.789', '01:02:03+05', '2024-01-02 03:04:05.000006', '2024-01-02 03:04:05+02',
     '1 year 2 days 03:04:05', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"a":  1}',
     '{"b": [1, null], "a": "x"}', '10.0.0.1/8', '10.0.0.0/8', '08:00:2b:01:02:03',
     '{1,NULL,3}', '{a,"b c",NULL,"NULL",""}', '[1,5)', B'1010', B'101', '(1.5,-2)',
     'a:1 b:2', 'sad', ROW(1, 'x, "y"'), 'x', 'a name', '16/B374D848'),
    (2, false, -32768, -2147483648, -9223372036854775808, 4294967295, 'NaN', 'Infinity', 'NaN',
     -999999999.999, '', '', '', '', 'infinity', '24:00:00', '00:00:00-15:59', '-infinity',
     'infinity', '-1 mons +2 days -00:00:00.000001', '00000000-0000-0000-0000-000000000000',
     'null', 'null', '::1', '::/0', 'ff:ff:ff:ff:ff:ff', '{}', '{}', 'empty', B'0000', '',
     '(1e+300,-0)', '', 'it''s ok', ROW(NULL, NULL), '', '', '0/0'),
    (3, NULL, 32767, 2147483647, 9223372036854775807, 0, '-0', '-0', 123456789012345678901234567890.5,
     0.001, E'tab\tnewline\ncarriage\rback\\slash', E'\\N', E'\\.', '\x5c4e', '0044-03-15 BC',
     '00:00', '23:59:59.999999+15', '0001-01-01 00:00:00 BC', '294276-12-31 23:59:59.999999+00',
     '178000000 years', 'ffffffff-ffff-ffff-ffff-ffffffffffff', '"\u20ac"', '"€"',
     '192.168.0.1', '192.168.0.0/16', '00:00:00:00:00:00', '{{1,2},{3,4}}', E'{"\\"","\\\\"}',
     '(,)', B'1111', B'', '(NaN,Infinity)', '''€'':3A', NULL, ROW(2, E'\n'), '|', 'NULL',
     'FFFFFFFF/FFFFFFFF'),
    (4, NULL, NULL, NULL, NULL, NULL, 'Infinity', 5e-324, 1e-20, NULL, 'käse € 🦀 ''"|', 'NULL',
     'null', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
     NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
    (5, NULL, NULL, NULL, NULL, NULL, 3.4028235e38, 1.7976931348623157e308, -0.00, NULL, '007',
     '1e5', '0x1', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
     NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO samples(id) VALUES (6);

CREATE TABLE composite(a int, b text, v text, PRIMARY KEY (b, a));
CREATE TABLE full_rows(a int, b text, f float8);
ALTER TABLE full_rows REPLICA IDENTITY FULL;
CREATE TABLE log(at int, note text, dom positive);
CREATE TABLE toast(id int PRIMARY KEY, n int, big text, small text);
ALTER TABLE toast ALTER big SET STORAGE EXTERNAL;
CREATE TABLE toast_full(id int PRIMARY KEY, n int, big text, small text);
ALTER TABLE toast_full ALTER big SET STORAGE EXTERNAL, REPLICA IDENTITY FULL;
CREATE TABLE keys(id int PRIMARY KEY, v text);
CREATE TABLE by_index(a int, id int NOT NULL, v text);
CREATE UNIQUE INDEX by_index_id ON by_index(id);
ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_id;
CREATE TABLE truncated(id serial PRIMARY KEY, v text);
CREATE TABLE truncated_child(id int PRIMARY KEY, parent int REFERENCES truncated);
CREATE TABLE some_columns(hidden text, id int PRIMARY KEY, shown text);
CREATE TABLE some_rows(id int PRIMARY KEY, region int, note text);
ALTER TABLE some_rows REPLICA IDENTITY FULL;
CREATE TABLE computed(id int PRIMARY KEY, a int, twice int GENERATED ALWAYS AS (a * 2) STORED);
CREATE TABLE empty(id int PRIMARY KEY);
CREATE TABLE parts(id int, k int, v text, PRIMARY KEY (id, k)) PARTITION BY LIST (k);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (1);
CREATE TABLE parts_2 (v text, k int NOT NULL, id int NOT NULL, PRIMARY KEY (id, k));
ALTER TABLE parts ATTACH PARTITION parts_2 FOR VALUES IN (2);
CREATE TABLE parts_rest PARTITION OF parts DEFAULT PARTITION BY LIST (k);
CREATE TABLE parts_3 PARTITION OF parts_rest FOR VALUES IN (3);
CREATE SCHEMA "Other Schema";
CREATE TABLE "Other Schema"."Select"("Order" int PRIMARY KEY, "from" text, "MiXed ""one""" text);
CREATE TABLE mark(id int PRIMARY KEY);
