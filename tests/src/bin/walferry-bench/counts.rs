//! What the null destination has counted, and what the source says there is.

use std::path::Path;

use serde_json::Value;

/// Sums over rows or changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) rows: u64,
    pub(crate) values: u64,
    pub(crate) nulls: u64,
    pub(crate) bytes: u64,
}

impl Counts {
    /// From the source's answer: rows, values, NULLs and bytes, as psql prints a row.
    pub(crate) fn of_row(row: &str) -> Self {
        let mut numbers = row.split('|').map(|number| number.parse().unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        Self { rows: next(), values: next(), nulls: next(), bytes: next() }
    }

    /// From the log of a run into `null:`; `what` is `copied rows` or `changes`.
    pub(crate) fn of_log(log: &Path, what: &str) -> Option<Self> {
        let text = std::fs::read_to_string(log).ok()?;
        Self::of_lines(&text, what)
    }

    fn of_lines(text: &str, what: &str) -> Option<Self> {
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let fields = lines.map(|mut line| line["fields"].take());
        let mut counted = fields.filter(|fields| fields["what"] == what);
        let fields = counted.next()?;
        let number = |name: &str| fields[name].as_u64();
        Some(Self {
            rows: number("rows")?,
            values: number("values")?,
            nulls: number("nulls")?,
            bytes: number("bytes")?,
        })
    }
}

/// SQL for rows, values, NULLs and bytes of `columns`, as aggregates. `format` gives the text that
/// goes over the wire; a cast to text would not, for `boolean` and `char(n)`.
pub(crate) fn sums(columns: &[&str]) -> String {
    let values = columns.iter().map(|column| format!("count({column})")).collect::<Vec<_>>();
    let values = values.join(" + ");
    let text: Vec<_> = columns.iter().map(|column| format!("format('%s', {column})")).collect();
    format!(
        "count(*), {values}, count(*) * {} - ({values}), coalesce(sum(octet_length({})), 0)",
        columns.len(),
        text.join(" || ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_are_read() {
        let counts = Counts { rows: 3, values: 5, nulls: 1, bytes: 20 };
        assert_eq!(Counts::of_row("3|5|1|20"), counts);
        let log = concat!(
            "{\"level\":\"INFO\",\"fields\":{\"message\":\"started\"}}\n",
            "no json\n",
            "{\"fields\":{\"message\":\"null destination counted\",\"what\":\"changes\",",
            "\"rows\":3,\"values\":5,\"nulls\":1,\"unchanged\":0,\"bytes\":20}}\n",
        );
        assert_eq!(Counts::of_lines(log, "changes"), Some(counts));
        assert_eq!(Counts::of_lines(log, "copied rows"), None);
    }

    #[test]
    fn sums_are_one_number_each() {
        assert_eq!(
            sums(&["a", "b"]),
            "count(*), count(a) + count(b), count(*) * 2 - (count(a) + count(b)), \
             coalesce(sum(octet_length(format('%s', a) || format('%s', b))), 0)"
        );
    }
}
