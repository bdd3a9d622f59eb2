//! What the writer writes: one transaction after the other, decided by a seed. Strings only.
//!
//! Several sessions write at once and never wait for each other's rows: each has numbers of its
//! own, and only the first one touches `inbox` and truncates.

use crate::demo::schema::{self, Sizes};

/// Transactions of the first session from one statement that truncates two tables to the next: late
/// enough that the first of them finds both tables streaming.
const TRUNCATE_BOTH_EVERY: u64 = 600;

/// What comes before the command that undoes a savepoint, so that the reader of psql's answers can
/// tell it from a rolled back transaction.
pub(super) const UNDO: &str = "#undo";

/// The transactions of one session.
#[derive(Debug)]
pub(super) struct Script {
    rng: fastrand::Rng,
    session: u64,
    sizes: Sizes,
    accounts: Numbers,
    articles: Numbers,
    orders: Numbers,
    audit: Numbers,
    inbox: Numbers,
    /// Transactions made since `inbox` may be touched.
    with_inbox: u64,
}

/// Numbers of one session: all that leave the same rest.
#[derive(Clone, Debug)]
struct Numbers {
    rest: u64,
    next: u64,
}

/// Sessions, and the distance between two numbers of one.
pub(super) const SESSIONS: u64 = 2;

impl Numbers {
    fn new(session: u64, taken: u64) -> Self {
        let rest = session + 1;
        Self { rest, next: rest + SESSIONS * taken.div_ceil(SESSIONS) }
    }

    /// One that was never used.
    fn fresh(&mut self) -> u64 {
        let number = self.next;
        self.next += SESSIONS;
        number
    }

    /// Several of them, as a source of rows.
    fn fresh_series(&mut self, count: u64) -> String {
        let first = self.next;
        self.next += SESSIONS * count;
        schema::series(first, self.next - 1, SESSIONS)
    }

    /// One that is or was in use, rather a young one.
    fn known(&self, rng: &mut fastrand::Rng) -> u64 {
        let all = (self.next - self.rest) / SESSIONS;
        let oldest = if rng.u8(..3) == 0 { all.saturating_sub(100) } else { 0 };
        if all == 0 { self.rest } else { self.rest + SESSIONS * rng.u64(oldest..all) }
    }
}

impl Script {
    /// The script of one of the sessions 0..[`SESSIONS`].
    pub(super) fn new(seed: u64, session: u64, sizes: Sizes) -> Self {
        let numbers = |taken| Numbers::new(session, taken);
        Self {
            rng: fastrand::Rng::with_seed(seed.wrapping_mul(SESSIONS).wrapping_add(session)),
            session,
            sizes,
            accounts: numbers(sizes.accounts),
            articles: numbers(sizes.articles),
            orders: numbers(sizes.orders),
            audit: numbers(sizes.audit),
            inbox: numbers(0),
            with_inbox: 0,
        }
    }

    /// The next transaction. `inbox` is left alone until `inbox_too`.
    pub(super) fn transaction(&mut self, inbox_too: bool) -> String {
        let inbox_too = inbox_too && self.session == 0;
        self.with_inbox += u64::from(inbox_too);
        if inbox_too && self.with_inbox.is_multiple_of(TRUNCATE_BOTH_EVERY) {
            return self.truncate_both();
        }
        let mut sql = String::from("BEGIN;\n");
        self.edits(&mut sql, inbox_too);
        if self.rng.u8(..4) == 0 {
            self.savepoint(&mut sql, inbox_too);
        }
        if self.rng.u8(..100) == 0 {
            // Open while others come and go.
            sql.push_str("SELECT pg_sleep(0.15);\n");
            self.edits(&mut sql, inbox_too);
        }
        sql.push_str(if self.rng.u8(..8) == 0 { "ROLLBACK;\n" } else { "COMMIT;\n" });
        sql
    }

    /// What is still owed when the writer stops: one statement that truncates two tables.
    pub(super) fn last(&mut self) -> Option<String> {
        let is_owed = (1..TRUNCATE_BOTH_EVERY).contains(&self.with_inbox);
        is_owed.then(|| self.truncate_both())
    }

    fn savepoint(&mut self, sql: &mut String, inbox_too: bool) {
        sql.push_str("SAVEPOINT a;\n");
        self.edits(sql, inbox_too);
        let nested = self.rng.bool();
        if nested {
            sql.push_str("SAVEPOINT b;\n");
            self.edits(sql, inbox_too);
            sql.push_str(&self.end_of("b"));
        }
        sql.push_str(&self.end_of("a"));
        self.edits(sql, inbox_too);
    }

    fn end_of(&mut self, savepoint: &str) -> String {
        match self.rng.u8(..3) {
            0 => format!("RELEASE {savepoint};\n"),
            _ => format!("\\echo {UNDO}\nROLLBACK TO {savepoint};\n"),
        }
    }

    fn edits(&mut self, sql: &mut String, inbox_too: bool) {
        for _ in 0..self.rng.u8(1..4) {
            let edit = match self.rng.u8(..if inbox_too { 13 } else { 11 }) {
                0..4 => self.edit_accounts(),
                4..6 => self.edit_articles(),
                6..8 => self.edit_orders(),
                8..11 => self.edit_audit(),
                _ => self.edit_inbox(),
            };
            sql.push_str(&edit);
        }
    }

    fn edit_accounts(&mut self) -> String {
        let id = self.accounts.known(&mut self.rng);
        match self.rng.u8(..12) {
            0..3 => schema::accounts(&self.accounts.fresh_series(self.rng.u64(1..8))),
            3..6 => format!(
                "UPDATE accounts SET balance = balance + 0.01, rating = CASE WHEN rating IS NULL \
                 THEN 1 / 3::float8 END, email = nullif(email, 'c{id}@example.com') \
                 WHERE id BETWEEN {id} AND {} AND id % {SESSIONS} = {};\n",
                id + 20,
                id % SESSIONS
            ),
            6 => {
                let count = self.rng.u64(100..800);
                format!(
                    "UPDATE accounts SET active = NOT active WHERE id BETWEEN {id} AND {} \
                     AND id % {SESSIONS} = {};\n",
                    id + count,
                    id % SESSIONS
                )
            }
            7 => {
                format!("UPDATE accounts SET id = {} WHERE id = {id};\n", self.accounts.fresh())
            }
            8 => self.swap_accounts(id),
            9 => {
                let again = schema::accounts(&schema::series(id, id, 1));
                format!("DELETE FROM accounts WHERE id = {id};\n{again}")
            }
            _ => format!("DELETE FROM accounts WHERE id IN ({id}, {});\n", id + 2 * SESSIONS),
        }
    }

    /// Two rows exchange their keys.
    fn swap_accounts(&mut self, one: u64) -> String {
        let other = self.accounts.known(&mut self.rng);
        if one == other {
            return String::new();
        }
        // Where one of them is gone this moves the other, which is as good.
        format!(
            "UPDATE accounts SET id = -{one} WHERE id = {one};\n\
             UPDATE accounts SET id = {one} WHERE id = {other};\n\
             UPDATE accounts SET id = {other} WHERE id = -{one};\n"
        )
    }

    fn edit_articles(&mut self) -> String {
        let number = self.articles.known(&mut self.rng);
        let slug = format!("'article-{number}'");
        match self.rng.u8(..8) {
            0 => schema::articles(&self.articles.fresh_series(self.rng.u64(1..4))),
            // The body is not touched: its TOASTed value is not sent.
            1..4 => format!("UPDATE articles SET views = views + 1 WHERE slug = {slug};\n"),
            4 => format!(
                "UPDATE articles SET slug = 'article-{}', summary = NULL WHERE slug = {slug};\n",
                self.articles.fresh()
            ),
            5..7 => format!(
                "UPDATE articles SET body = {} WHERE slug = {slug};\n",
                schema::body(&number.to_string(), self.rng.u64(1..1_000))
            ),
            _ => format!("DELETE FROM articles WHERE slug = {slug};\n"),
        }
    }

    fn edit_orders(&mut self) -> String {
        let number = self.orders.known(&mut self.rng);
        let order = schema::order(number);
        match self.rng.u8(..8) {
            0..2 => schema::orders(&self.orders.fresh_series(self.rng.u64(1..4))),
            2..5 => format!(
                "UPDATE order_lines SET quantity = quantity + 1, shipped = CASE WHEN shipped IS NULL \
                 THEN TIMESTAMP '2026-01-02 03:04:05.678901' END WHERE order_id = {order};\n"
            ),
            5 => format!(
                "UPDATE order_lines SET line = line + {} WHERE order_id = {order} AND line = 2;\n",
                self.rng.u8(100..200)
            ),
            6 => format!(
                "UPDATE order_lines SET order_id = {} WHERE order_id = {order};\n",
                schema::order(self.orders.fresh())
            ),
            _ => format!("DELETE FROM order_lines WHERE order_id = {order};\n"),
        }
    }

    fn edit_audit(&mut self) -> String {
        let entry = self.audit.known(&mut self.rng);
        let one = format!("WHERE ctid = (SELECT ctid FROM audit WHERE entry = {entry} LIMIT 1);\n");
        match self.rng.u8(..8) {
            0..3 => schema::audit(&self.audit.fresh_series(self.rng.u64(1..12))),
            // The same row several times.
            3 => schema::audit(&format!("unnest(array_fill({entry}::bigint, array[3]))")),
            // One of several equal rows, and all of them.
            4 => format!("UPDATE audit SET score = {} {one}", self.rng.u16(..)),
            5 => format!("DELETE FROM audit {one}"),
            6 => format!(
                "UPDATE audit SET detail = CASE WHEN detail IS NULL THEN repeat(md5('{entry}'), 80) \
                 END, actor = coalesce(actor, 'nobody') WHERE entry = {entry};\n"
            ),
            _ => format!("DELETE FROM audit WHERE entry = {entry};\n"),
        }
    }

    fn edit_inbox(&mut self) -> String {
        let id = self.inbox.known(&mut self.rng);
        match self.rng.u8(..12) {
            0..6 => schema::inbox(&self.inbox.fresh_series(self.rng.u64(1..20))),
            6..9 => format!("UPDATE inbox SET seen = NOT seen WHERE id > {id};\n"),
            9..11 => format!("DELETE FROM inbox WHERE id BETWEEN {id} AND {};\n", id + 9),
            _ => "TRUNCATE inbox;\n".to_owned(),
        }
    }

    /// Two tables in one statement, and new rows in both after it.
    fn truncate_both(&mut self) -> String {
        let entries = self.audit.fresh_series(1 + self.sizes.audit / 6);
        let messages = self.inbox.fresh_series(50);
        format!(
            "BEGIN;\nTRUNCATE audit, inbox;\n{}{}COMMIT;\n",
            schema::audit(&entries),
            schema::inbox(&messages)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions(seed: u64) -> Vec<String> {
        let sizes = Sizes::of(2_000);
        (0..SESSIONS)
            .map(|session| {
                let mut script = Script::new(seed, session, sizes);
                (0..700).map(|step| script.transaction(step > 20)).collect()
            })
            .collect()
    }

    #[test]
    fn a_seed_decides_everything() {
        assert_eq!(sessions(7), sessions(7));
        assert_ne!(sessions(7), sessions(8));
    }

    #[test]
    fn everything_promised_is_written() {
        let sessions = sessions(1);
        let all = sessions.concat();
        for piece in [
            "TRUNCATE audit, inbox;",
            "TRUNCATE inbox;",
            "ROLLBACK;",
            "ROLLBACK TO b;",
            "RELEASE a;",
            "SET slug =",
            "SET id = -",
            "SET order_id =",
            "SET views =",
            "SET body =",
            "DELETE FROM audit WHERE ctid",
            "pg_sleep",
        ] {
            assert!(all.contains(piece), "{piece}");
        }
        assert!(!sessions[1].contains("inbox") && !sessions[1].contains("TRUNCATE"));
    }

    #[test]
    fn two_tables_are_truncated_at_the_end_if_not_before() {
        let mut script = Script::new(1, 0, Sizes::of(2_000));
        assert_eq!(script.last(), None);
        script.transaction(true);
        assert!(script.last().is_some_and(|sql| sql.contains("TRUNCATE audit, inbox;")));
        for _ in 0..TRUNCATE_BOTH_EVERY {
            script.transaction(true);
        }
        assert_eq!(script.last(), None);
    }

    #[test]
    fn sessions_have_numbers_of_their_own() {
        for taken in [0, 1, 2, 999, 1_000] {
            let mut all: Vec<_> = (0..SESSIONS)
                .flat_map(|session| {
                    let mut numbers = Numbers::new(session, taken);
                    [numbers.fresh(), numbers.fresh(), numbers.fresh()]
                })
                .collect();
            assert!(all.iter().all(|number| *number > taken), "{all:?}");
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), 6);
        }
    }
}
