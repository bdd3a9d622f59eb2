-- One round of changes of pipeline_sqlite.rs. Ids of round {K} start at {K} * 1000.
INSERT INTO types TABLE samples;
UPDATE types SET id = id + {K} * 1000 + 100 WHERE id < 100;
INSERT INTO types TABLE samples;
UPDATE types SET id = id + {K} * 1000 + 200 WHERE id < 100;
UPDATE types t SET (b, i8, f4, f8, n, t, c, raw, d, ts, iv, jb, ta, m, p) =
    (SELECT b, i8, f4, f8, n, t, c, raw, d, ts, iv, jb, ta, m, p FROM samples s
     WHERE s.id = 1 + t.id % 6) WHERE t.id > {K} * 1000 + 200;
UPDATE types SET t = NULL, raw = NULL, f8 = NULL, b = NULL WHERE id = {K} * 1000 + 101;
DELETE FROM types WHERE id = {K} * 1000 + 102 OR id = {K} * 1000 - 1000 + 201;

INSERT INTO composite SELECT i, b, 'v' FROM generate_series({K} * 1000, {K} * 1000 + 9) i,
    (VALUES (''), ('x'), (E'a\tb')) AS v(b);
UPDATE composite SET v = NULL WHERE a % 3 = 0;
UPDATE composite SET b = b || '!' WHERE a = {K} * 1000 + 1;
UPDATE composite SET a = a + 100, v = 'moved' WHERE a = {K} * 1000 + 2;
DELETE FROM composite WHERE a = {K} * 1000 + 3 AND b = 'x';

INSERT INTO full_rows VALUES ({K}, 'twice', 0.5), ({K}, 'twice', 0.5), ({K}, NULL, NULL),
    (NULL, NULL, NULL), (NULL, NULL, NULL), ({K}, 'nan', 'NaN'), ({K}, 'zero', '-0'), ({K}, '', 1e300);
UPDATE full_rows SET b = 'once' WHERE ctid = (SELECT min(ctid) FROM full_rows WHERE a = {K} AND b = 'twice');
UPDATE full_rows SET b = 'was null' WHERE a = {K} AND b IS NULL;
UPDATE full_rows SET a = {K} WHERE ctid = (SELECT min(ctid) FROM full_rows WHERE a IS NULL);
UPDATE full_rows SET f = -f WHERE a = {K} AND b IN ('nan', 'zero');
DELETE FROM full_rows WHERE ctid = (SELECT min(ctid) FROM full_rows WHERE a IS NULL);
INSERT INTO log VALUES ({K}, 'a', 7), ({K}, 'a', 7), (NULL, NULL, NULL);

INSERT INTO toast SELECT i, 0, repeat('toast' || i, 1000), 's' FROM generate_series({K} * 1000, {K} * 1000 + 4) i;
UPDATE toast SET n = n + 1;
UPDATE toast SET big = repeat('other', 900), small = NULL WHERE id = {K} * 1000;
UPDATE toast SET id = -id, n = 7 WHERE id = {K} * 1000 + 1;
UPDATE toast SET big = NULL WHERE id = {K} * 1000 + 2;
INSERT INTO toast_full SELECT i, 0, repeat('toast' || i, 1000), 's' FROM generate_series({K} * 1000, {K} * 1000 + 4) i;
UPDATE toast_full SET n = n + 1;
UPDATE toast_full SET big = repeat('other', 900), small = NULL WHERE id = {K} * 1000;
UPDATE toast_full SET id = -id, n = 7 WHERE id = {K} * 1000 + 1;
DELETE FROM toast_full WHERE id = {K} * 1000 + 2;

INSERT INTO keys SELECT i, 'of ' || i FROM generate_series({K} * 1000 + 1, {K} * 1000 + 6) i;
BEGIN;
UPDATE keys SET id = -1 WHERE id = {K} * 1000 + 1;
UPDATE keys SET id = {K} * 1000 + 1 WHERE id = {K} * 1000 + 2;
UPDATE keys SET id = {K} * 1000 + 2 WHERE id = -1;
DELETE FROM keys WHERE id = {K} * 1000 + 3;
INSERT INTO keys VALUES ({K} * 1000 + 3, 'again');
DELETE FROM keys WHERE id = {K} * 1000 + 3;
INSERT INTO keys VALUES ({K} * 1000 + 3, 'and again');
SAVEPOINT s;
UPDATE keys SET v = 'never seen';
ROLLBACK TO s;
COMMIT;
UPDATE keys SET id = id + 500 WHERE id > {K} * 1000 + 3;
BEGIN;
DELETE FROM keys;
ROLLBACK;
INSERT INTO by_index VALUES ({K}, {K} * 10, 'x'), ({K}, {K} * 10 + 1, 'y'), ({K}, {K} * 10 + 2, 'z');
UPDATE by_index SET v = NULL WHERE id = {K} * 10;
UPDATE by_index SET id = -id - 1 WHERE id = {K} * 10 + 1;
DELETE FROM by_index WHERE id = {K} * 10 + 2;

INSERT INTO truncated(v) VALUES ('goes'), ('goes too');
BEGIN;
INSERT INTO truncated(v) VALUES ('goes as well');
TRUNCATE truncated, truncated_child RESTART IDENTITY;
INSERT INTO truncated(v) VALUES ('stays'), ('stays too');
INSERT INTO truncated_child SELECT id * 10, id FROM truncated;
COMMIT;
BEGIN;
TRUNCATE truncated CASCADE;
ROLLBACK;
INSERT INTO truncated(v) VALUES ('of round {K}');

INSERT INTO some_columns SELECT 'hidden', i, 'shown' FROM generate_series({K} * 1000, {K} * 1000 + 4) i;
UPDATE some_columns SET hidden = 'changed' WHERE id = {K} * 1000;
UPDATE some_columns SET shown = NULL WHERE id = {K} * 1000 + 1;
DELETE FROM some_columns WHERE id = {K} * 1000 + 2;
INSERT INTO some_rows SELECT i, i % 3, 'n' FROM generate_series({K} * 1000, {K} * 1000 + 11) i;
UPDATE some_rows SET region = 1 WHERE id = {K} * 1000 + (3 - {K} * 1000 % 3) % 3;
UPDATE some_rows SET region = region + 1 WHERE id BETWEEN {K} * 1000 + 4 AND {K} * 1000 + 8;
UPDATE some_rows SET note = 'changed' WHERE id >= {K} * 1000 + 6;
DELETE FROM some_rows WHERE id IN ({K} * 1000 + 9, {K} * 1000 + 10, {K} * 1000 + 11);
INSERT INTO computed SELECT i, i FROM generate_series({K} * 1000, {K} * 1000 + 4) i;
UPDATE computed SET a = NULL WHERE id = {K} * 1000;
UPDATE computed SET a = 5 WHERE id = {K} * 1000 + 1;

TRUNCATE {TRUNCATED};
INSERT INTO parts SELECT i, 1 + i % 3, 'p' FROM generate_series({K} * 1000, {K} * 1000 + 20) i;
UPDATE parts SET v = 'q' WHERE id % 2 = 0;
UPDATE parts SET k = 1 + k % 3 WHERE id % 5 = 0;
DELETE FROM parts WHERE id % 7 = 0;
INSERT INTO parts VALUES ({K} * 1000 + 50, 2, 'after the truncate');

INSERT INTO "Other Schema"."Select" VALUES ({K} * 10, 'a', 'b'), ({K} * 10 + 1, NULL, ''), ({K} * 10 + 2, 'x', 'y');
UPDATE "Other Schema"."Select" SET "from" = 'it''s "from"' WHERE "Order" = {K} * 10 + 1;
UPDATE "Other Schema"."Select" SET "Order" = -"Order" - 1 WHERE "Order" = {K} * 10 + 2;
DELETE FROM "Other Schema"."Select" WHERE "Order" = {K} * 10;
INSERT INTO mark VALUES ({K});
