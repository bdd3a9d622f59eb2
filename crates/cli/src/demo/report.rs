//! The words of the demo: one line for everything that a person should see. Pure.

use core::time::Duration;

use crate::demo::compare::Difference;
use crate::demo::kills::{Kills, Made, Moment};
use crate::demo::schema::{Sizes, TABLES, Table};
use crate::demo::writer::Written;
use crate::units;

/// What the end of the demo tells.
#[derive(Debug)]
pub(super) struct Figures {
    pub(super) kills: Kills,
    pub(super) required: Kills,
    pub(super) planned: usize,
    pub(super) written: Written,
    pub(super) rows_copied: u64,
    pub(super) elapsed: Duration,
}

/// `loaded      400,000 rows ..`.
pub(super) fn field(name: &str, text: &str) -> String {
    format!("{name:<12}{text}\n")
}

/// What was loaded.
pub(super) fn loaded(sizes: Sizes, bytes: u64, elapsed: Duration) -> String {
    field(
        "loaded",
        &format!(
            "{} rows, {}, into {} tables in {}",
            units::count(sizes.rows()),
            units::bytes(bytes),
            TABLES.len(),
            units::time(elapsed)
        ),
    )
}

/// Above the lines of [`kill`].
pub(super) fn kills_head() -> String {
    "\nkill  age      counts as  phases just before\n".to_owned()
}

/// One kill.
pub(super) fn kill(number: usize, made: &Made) -> String {
    let stream = if made.seen.sender.is_some() { ", main stream runs" } else { "" };
    format!(
        "{number:>4}  {:<7}  {:<9}  {}{stream}\n",
        units::time(made.age),
        match made.moment {
            Moment::Copying => "copying",
            Moment::Streaming => "streaming",
            Moment::Between => "between",
        },
        made.seen.text()
    )
}

/// Above the lines of [`table`].
pub(super) fn tables_head() -> String {
    format!("\n{:<12}{:<24}{:>10}  {}\n", "table", "key", "rows", "source and destination")
}

/// One compared table.
pub(super) fn table(table: &Table, difference: &Difference) -> String {
    let verdict = if difference.is_none() {
        "equal, all columns".to_owned()
    } else {
        format!(
            "DIFFERENT: {} only in the source, {} only in the destination",
            difference.missing, difference.surplus
        )
    };
    let rows = units::count(difference.source_rows as u64);
    let mut text = format!("{:<12}{:<24}{rows:>10}  {verdict}\n", table.name, table.key);
    for example in &difference.examples {
        text.push_str(&format!("{:<12}{example}\n", ""));
    }
    text
}

impl Figures {
    /// The last lines but the verdict.
    pub(super) fn text(&self) -> String {
        let (kills, written) = (self.kills, self.written);
        let lines = [
            (
                "kills",
                format!(
                    "{}: {} while a table was copying, {} while all streamed, {} between",
                    kills.all(),
                    kills.copying,
                    kills.streaming,
                    kills.between
                ),
            ),
            ("starts", (kills.all() + 1).to_string()),
            (
                "written",
                format!(
                    "{} row changes and {} truncates in {} transactions",
                    units::count(written.committed.changes),
                    units::count(written.truncates),
                    units::count(written.committed.transactions)
                ),
            ),
            (
                "undone",
                format!(
                    "{} row changes, {} transactions as a whole",
                    units::count(written.rolled_back.changes),
                    units::count(written.rolled_back.transactions)
                ),
            ),
            (
                "copied",
                format!(
                    "{} rows by the copies that were completed",
                    units::count(self.rows_copied)
                ),
            ),
            ("took", units::time(self.elapsed)),
        ];
        let lines = lines.iter().map(|(name, text)| field(name, text));
        format!("\n{}", lines.collect::<String>())
    }

    /// What was too little to prove anything.
    pub(super) fn shortfalls(&self) -> Vec<String> {
        let mut short = Vec::new();
        for (found, wanted, what) in [
            (self.kills.all(), self.planned, "kills"),
            (self.kills.copying, self.required.copying, "kills while a table was copying"),
            (self.kills.streaming, self.required.streaming, "kills while all tables streamed"),
            (self.written.truncates.min(3) as usize, 3, "truncated tables"),
            (usize::from(self.written.committed.changes > 0), 1, "changes of the writer"),
        ] {
            if found < wanted {
                short.push(format!("{found} {what}, {wanted} are needed"));
            }
        }
        short
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::writer::Amount;

    fn figures(kills: Kills) -> Figures {
        let committed = Amount { transactions: 1_200, changes: 15_000 };
        Figures {
            kills,
            required: Kills::required(10),
            planned: 10,
            written: Written { committed, truncates: 4, ..Written::default() },
            rows_copied: 400_000,
            elapsed: Duration::from_secs(42),
        }
    }

    #[test]
    fn too_few_kills_of_a_kind_are_named() {
        let short = |copying, streaming, between| {
            figures(Kills { copying, streaming, between }).shortfalls()
        };
        assert!(short(2, 4, 4).is_empty());
        assert_eq!(short(1, 9, 0), ["1 kills while a table was copying, 2 are needed"]);
        assert_eq!(short(7, 3, 0), ["3 kills while all tables streamed, 4 are needed"]);
        assert_eq!(short(3, 4, 2), ["9 kills, 10 are needed"]);
    }

    #[test]
    fn a_table_is_one_line_unless_it_differs() {
        let equal =
            Difference { source_rows: 1_234, destination_rows: 1_234, ..Difference::default() };
        assert_eq!(
            table(&TABLES[1], &equal),
            "accounts    bigint                       1,234  equal, all columns\n"
        );
        let differs = Difference {
            missing: 1,
            examples: vec!["only in the source: 7\tx".to_owned()],
            ..equal
        };
        let text = table(&TABLES[1], &differs);
        assert!(text.contains("DIFFERENT: 1 only in the source, 0 only"), "{text}");
        assert!(text.ends_with("\n            only in the source: 7\tx\n"), "{text}");
    }

    #[test]
    fn the_figures_are_aligned() {
        let text = figures(Kills { copying: 3, streaming: 5, between: 2 }).text();
        assert!(
            text.starts_with(
                "\nkills       10: 3 while a table was copying, 5 while all streamed, 2 between\n\
                 starts      11\n"
            ),
            "{text}"
        );
        assert!(text.ends_with("took        42 s\n"), "{text}");
    }
}
