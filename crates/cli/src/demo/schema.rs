//! The five tables of the demo: how they look, how they are filled, and how their values are put
//! into words for the comparison. Strings only.
//!
//! Every row is a function of one number, so the writer can name rows it has never seen.

/// Name of the database and of its publication.
pub(super) const DATABASE: &str = "shop";

/// How the values of a column compare on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Whole numbers.
    Integer,
    /// True and false, which SQLite keeps as 1 and 0.
    Bool,
    /// Floating point, compared bit by bit.
    Float,
    /// `bytea`.
    Bytes,
    /// Everything that SQLite keeps as the text PostgreSQL prints.
    Text,
}

/// One column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) form: Form,
}

/// One table.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) name: &'static str,
    /// Its key, for people.
    pub(super) key: &'static str,
    pub(super) columns: &'static [Column],
}

const fn integer(name: &'static str) -> Column {
    Column { name, form: Form::Integer }
}

const fn boolean(name: &'static str) -> Column {
    Column { name, form: Form::Bool }
}

const fn float(name: &'static str) -> Column {
    Column { name, form: Form::Float }
}

const fn bytes(name: &'static str) -> Column {
    Column { name, form: Form::Bytes }
}

const fn text(name: &'static str) -> Column {
    Column { name, form: Form::Text }
}

pub(super) const TABLES: [Table; 5] = [
    Table {
        name: "inbox",
        key: "bigint, empty at first",
        columns: &[
            integer("id"),
            text("sender"),
            text("subject"),
            boolean("seen"),
            text("received"),
        ],
    },
    Table {
        name: "accounts",
        key: "bigint",
        columns: &[
            integer("id"),
            text("name"),
            text("email"),
            text("balance"),
            float("rating"),
            boolean("active"),
            text("joined"),
            text("settings"),
        ],
    },
    Table {
        name: "articles",
        key: "text, TOASTed values",
        columns: &[
            text("slug"),
            text("title"),
            text("body"),
            text("summary"),
            integer("views"),
            text("published"),
        ],
    },
    Table {
        name: "order_lines",
        key: "uuid and smallint",
        columns: &[
            text("order_id"),
            integer("line"),
            text("sku"),
            integer("quantity"),
            text("price"),
            text("shipped"),
            text("note"),
            bytes("checksum"),
        ],
    },
    Table {
        name: "audit",
        key: "none, identity full",
        columns: &[
            integer("entry"),
            text("actor"),
            text("action"),
            text("detail"),
            text("at"),
            float("score"),
        ],
    },
];

/// Tables, publication. `inbox` comes first, so that its copy finds it empty.
pub(super) const CREATE: &str = "
CREATE TABLE inbox (
    id bigint PRIMARY KEY, sender text NOT NULL, subject text, seen boolean NOT NULL DEFAULT false,
    received timestamptz NOT NULL);
CREATE TABLE accounts (
    id bigint PRIMARY KEY, name text NOT NULL, email text, balance numeric(14, 2) NOT NULL,
    rating double precision, active boolean NOT NULL, joined date NOT NULL, settings jsonb);
CREATE TABLE articles (
    slug text PRIMARY KEY, title text NOT NULL, body text, summary text, views integer NOT NULL,
    published timestamptz);
CREATE TABLE order_lines (
    order_id uuid, line smallint, sku text NOT NULL, quantity integer NOT NULL,
    price numeric(10, 2) NOT NULL, shipped timestamp, note text, checksum bytea NOT NULL,
    PRIMARY KEY (order_id, line));
CREATE TABLE audit (
    entry integer NOT NULL, actor text, action text NOT NULL, detail text, at timestamptz NOT NULL,
    score real);
CREATE INDEX ON audit (entry);
ALTER TABLE audit REPLICA IDENTITY FULL;
-- Long values go to the TOAST table as they are, so that they are surely there.
ALTER TABLE articles ALTER body SET STORAGE EXTERNAL;
ALTER TABLE audit ALTER detail SET STORAGE EXTERNAL;
CREATE PUBLICATION shop FOR ALL TABLES;
";

/// How many rows each table gets at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) accounts: u64,
    pub(super) articles: u64,
    /// Orders of four lines each.
    pub(super) orders: u64,
    pub(super) audit: u64,
}

/// Lines of an order.
pub(super) const LINES: u64 = 4;

impl Sizes {
    /// Shares out `rows` rows.
    pub(super) const fn of(rows: u64) -> Self {
        let (articles, audit) = (rows / 20, rows * 3 / 20);
        let orders = rows * 7 / 20 / LINES;
        Self { accounts: rows - articles - audit - orders * LINES, articles, orders, audit }
    }

    pub(super) const fn rows(self) -> u64 {
        self.accounts + self.articles + self.orders * LINES + self.audit
    }
}

/// The statements that fill the tables.
pub(super) fn load(sizes: Sizes) -> String {
    [
        accounts(&series(1, sizes.accounts, 1)),
        articles(&series(1, sizes.articles, 1)),
        orders(&series(1, sizes.orders, 1)),
        audit(&series(1, sizes.audit, 1)),
        "ANALYZE;".to_owned(),
    ]
    .concat()
}

/// The numbers from `first` to `last`, every `step`th, as a source of rows.
pub(super) fn series(first: u64, last: u64, step: u64) -> String {
    format!("generate_series({first}::bigint, {last}, {step})")
}

/// Inserts messages for the numbers.
pub(super) fn inbox(numbers: &str) -> String {
    format!(
        "INSERT INTO inbox SELECT n, 'sender ' || n % 97, \
         CASE WHEN n % 3 = 0 THEN NULL ELSE 'about ' || n END, n % 2 = 0, {} \
         FROM {numbers} AS n;\n",
        moment("n")
    )
}

/// Inserts accounts for the numbers: awkward text, NULLs, all kinds of numbers.
pub(super) fn accounts(numbers: &str) -> String {
    format!(
        r"INSERT INTO accounts SELECT n,
         CASE n % 13 WHEN 0 THEN '' WHEN 1 THEN E'tab\tand\nline ' || n WHEN 2 THEN '\N'
            WHEN 3 THEN E'back\\slash \x01 ' || n WHEN 4 THEN 'Zoë Ångström 漢字 ' || n
            ELSE 'customer ' || n END,
         CASE WHEN n % 7 = 0 THEN NULL ELSE 'c' || n || '@example.com' END,
         (n * 7919 % 1000003 - 5000)::numeric / 100,
         CASE WHEN n % 5 = 0 THEN NULL WHEN n % 1009 = 1 THEN 'NaN' WHEN n % 1009 = 2 THEN '-Infinity'
            ELSE sin(n) * 10 ^ (n % 9) END,
         n % 3 <> 0, DATE '1999-12-31' + (n % 20000)::int,
         CASE WHEN n % 4 = 0 THEN NULL ELSE jsonb_build_object('theme', n % 6, 'tags', jsonb_build_array('a', n)) END
         FROM {numbers} AS n;
"
    )
}

/// Inserts articles for the numbers: every second one has a body that is TOASTed.
pub(super) fn articles(numbers: &str) -> String {
    format!(
        "INSERT INTO articles SELECT 'article-' || n, 'Title ' || n, {}, \
         CASE WHEN n % 5 = 0 THEN NULL ELSE 'in short: ' || n END, (n % 100)::int, \
         CASE WHEN n % 6 = 0 THEN NULL ELSE {} END FROM {numbers} AS n;\n",
        body("n", 0),
        moment("n")
    )
}

/// A body, another one for each `version`.
pub(super) fn body(number: &str, version: u64) -> String {
    format!(
        "CASE ({number} + {version}) % 4 WHEN 1 THEN NULL WHEN 3 THEN 'short ' || {version} \
         ELSE repeat(md5({number} || '/{version}'), 70 + ({number} % 180)::int) END"
    )
}

/// Inserts all lines of the orders with the numbers.
pub(super) fn orders(numbers: &str) -> String {
    format!(
        "INSERT INTO order_lines SELECT {}, line, 'sku-' || n % 977, (n % 9 + 1)::int, \
         (n * 31 % 9973)::numeric / 100, CASE WHEN (n + line) % 3 = 0 THEN NULL ELSE \
         TIMESTAMP '2024-02-28 23:59:59.5' + n * INTERVAL '1 minute' END, \
         CASE WHEN line <> 2 THEN NULL ELSE 'fragile; ring ''twice''' END, \
         decode(md5(n || '.' || line), 'hex') \
         FROM {numbers} AS n, generate_series(1, {LINES}) AS line;\n",
        order("n")
    )
}

/// The key of an order.
pub(super) fn order(number: impl std::fmt::Display) -> String {
    format!("md5('order ' || {number})::uuid")
}

/// Inserts entries for the numbers; of ten numbers, one makes the same row as its neighbour.
pub(super) fn audit(numbers: &str) -> String {
    format!(
        "INSERT INTO audit SELECT n::int, CASE WHEN n % 8 = 0 THEN NULL ELSE 'user ' || n % 50 END, \
         'action ' || n % 12, CASE WHEN n % 20 = 3 THEN repeat(md5(n::text), 90) WHEN n % 3 = 0 \
         THEN NULL ELSE 'detail ' || n END, {}, (n % 1000)::real / 7 FROM (SELECT CASE WHEN g % 10 = 1 \
         AND g > 1 THEN g - 1 ELSE g END FROM {numbers} AS g) AS entry (n);\n",
        moment("n")
    )
}

fn moment(number: &str) -> String {
    format!("TIMESTAMPTZ '2026-03-29 00:30:00+00' + {number} * INTERVAL '7.000123 seconds'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_rows_are_shared_out() {
        for rows in [0, 1, 19, 20, 999, 400_000] {
            assert_eq!(Sizes::of(rows).rows(), rows);
        }
    }
}
