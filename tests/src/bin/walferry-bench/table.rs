//! The figures as a table in markdown, and what they are held to.

use crate::counts::Counts;
use crate::measure::Usage;

/// Bytes in a mebibyte.
const MIB: f64 = 1_048_576.0;

/// Figures of all contenders over the same work.
#[derive(Debug)]
pub(crate) struct Work {
    /// What was done, as a heading.
    pub(crate) name: String,
    /// `rows` or `changes`.
    pub(crate) unit: &'static str,
    /// What the source says there is.
    pub(crate) expected: Counts,
    /// The one that the others are compared with comes first.
    pub(crate) contenders: Vec<Contender>,
    /// CPU per row or change that is allowed into `null:`, in microseconds.
    pub(crate) cpu_micros_max: f64,
}

/// One contender.
#[derive(Debug)]
pub(crate) struct Contender {
    pub(crate) name: String,
    pub(crate) runs: Vec<Usage>,
    /// What it counted in each run; only of those that count.
    pub(crate) counted: Vec<Option<Counts>>,
    /// Whether budgets are for it.
    pub(crate) is_judged: bool,
}

/// Everything measured.
#[derive(Debug, Default)]
pub(crate) struct Results(pub(crate) Vec<Work>);

/// One budget and whether it was met.
#[derive(Debug, PartialEq)]
pub(crate) struct Budget {
    pub(crate) what: String,
    pub(crate) measured: String,
    pub(crate) allowed: String,
    pub(crate) met: bool,
}

/// Memory that is allowed into `null:`.
const MEMORY_MAX_MIB: f64 = 64.0;

impl Contender {
    pub(crate) fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), runs: Vec::new(), counted: Vec::new(), is_judged: false }
    }

    fn system_micros(&self, rows: u64) -> f64 {
        Usage::median(&self.runs).system.as_secs_f64() * 1e6 / rows as f64
    }

    fn cpu_micros(&self, rows: u64) -> f64 {
        Usage::median(&self.runs).cpu.as_secs_f64() * 1e6 / rows as f64
    }

    fn memory_mib(&self) -> f64 {
        Usage::median(&self.runs).memory as f64 / MIB
    }
}

impl Work {
    /// The table.
    pub(crate) fn markdown(&self) -> String {
        let unit = self.unit;
        let one = unit.trim_end_matches('s');
        let mut text = format!(
            "\n### {}\n\n| contender | seconds | {unit}/s | CPU us/{one} | of it system | peak RSS MiB | of the first |\n\
             |---|---:|---:|---:|---:|---:|---:|\n",
            self.name
        );
        let rows = self.expected.rows as f64;
        let first = self.contenders.first().map(|first| Usage::median(&first.runs).wall);
        for contender in &self.contenders {
            let median = Usage::median(&contender.runs);
            let seconds = median.wall.as_secs_f64();
            let share = first.map_or(0.0, |first| first.as_secs_f64() / seconds);
            text.push_str(&format!(
                "| {} | {seconds:.2} | {} | {:.2} | {:.2} | {:.0} | {:.0} % |\n",
                contender.name,
                grouped(rows / seconds),
                contender.cpu_micros(self.expected.rows),
                contender.system_micros(self.expected.rows),
                contender.memory_mib(),
                share * 100.0
            ));
        }
        text
    }
}

impl Results {
    /// Where a contender counted something else than the source.
    pub(crate) fn mismatches(&self) -> Vec<String> {
        let mut found = Vec::new();
        for work in &self.0 {
            for contender in &work.contenders {
                for counted in &contender.counted {
                    let text = match counted {
                        None => "no counts in its log".to_owned(),
                        Some(counted) if *counted == work.expected => continue,
                        Some(counted) => {
                            format!("counted {counted:?}, the source has {:?}", work.expected)
                        }
                    };
                    found.push(format!("{}, {} {text}", work.name, contender.name));
                }
            }
        }
        found
    }

    /// The budgets of those that have some.
    pub(crate) fn budgets(&self) -> Vec<Budget> {
        let mut budgets = Vec::new();
        for work in &self.0 {
            for contender in work.contenders.iter().filter(|contender| contender.is_judged) {
                let mut hold = |what: &str, unit: &str, measured: f64, allowed: f64| {
                    budgets.push(Budget {
                        what: format!("{}, {} {what}", work.name, contender.name),
                        measured: format!("{measured:.2} {unit}"),
                        allowed: format!("{allowed} {unit}"),
                        met: measured <= allowed,
                    });
                };
                let cpu = contender.cpu_micros(work.expected.rows);
                hold("CPU", "us each", cpu, work.cpu_micros_max);
                hold("peak RSS", "MiB", contender.memory_mib(), MEMORY_MAX_MIB);
            }
        }
        budgets
    }
}

/// `1,234,567`.
fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn results(counted: Option<Counts>) -> Results {
        let usage = |millis: u64, memory: u64| Usage {
            wall: Duration::from_millis(millis),
            cpu: Duration::from_millis(millis / 2),
            system: Duration::from_millis(millis / 10),
            memory: memory << 20,
        };
        let mut judged = Contender::new("walferry into null:");
        judged.runs = vec![usage(500, 65)];
        judged.counted = vec![counted];
        judged.is_judged = true;
        let anchor = Contender { runs: vec![usage(400, 8)], ..Contender::new("psql") };
        Results(vec![Work {
            name: "copy t".to_owned(),
            unit: "rows",
            expected: Counts { rows: 1_000_000, values: 2, nulls: 3, bytes: 4 },
            contenders: vec![anchor, judged],
            cpu_micros_max: 0.35,
        }])
    }

    #[test]
    fn the_table_compares_with_the_first() {
        let text = results(None).0[0].markdown();
        assert!(text.contains("| psql | 0.40 | 2,500,000 | 0.20 | 0.04 | 8 | 100 % |\n"), "{text}");
        assert!(
            text.contains("| walferry into null: | 0.50 | 2,000,000 | 0.25 | 0.05 | 65 | 80 % |\n"),
            "{text}"
        );
    }

    #[test]
    fn counts_that_are_missing_or_differ_are_found() {
        assert_eq!(results(None).mismatches().len(), 1);
        let expected = results(None).0[0].expected;
        assert!(results(Some(expected)).mismatches().is_empty());
        let other = Counts { bytes: 5, ..expected };
        assert!(results(Some(other)).mismatches()[0].contains("bytes: 5"));
    }

    #[test]
    fn each_budget_is_judged_by_itself() {
        let met: Vec<bool> = results(None).budgets().iter().map(|budget| budget.met).collect();
        assert_eq!(met, [true, false]);
    }
}
