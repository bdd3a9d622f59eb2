//! Shows a run while it runs: bars on a terminal, a line now and then elsewhere; notices as log
//! lines in both.

use core::time::Duration;
use std::collections::BTreeMap;
use std::time::Instant;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use tracing::Level;
use walferry_core::ids::TableId;
use walferry_core::notice::Notice;

use crate::output;
use crate::progress::{self, Line, Rates, Snapshot};

/// Pace of the bars: looks alive, costs nothing.
const BARS_EVERY: Duration = Duration::from_millis(200);
/// Pace of the summary line: a log that can be read.
const SUMMARY_EVERY: Duration = Duration::from_secs(10);

/// What is on the screen.
pub(crate) struct Renderer {
    rates: Rates,
    last: Instant,
    bars: Option<Bars>,
}

struct Bars {
    multi: MultiProgress,
    stream: ProgressBar,
    tables: BTreeMap<TableId, ProgressBar>,
}

impl Renderer {
    pub(crate) fn new(multi: MultiProgress) -> Self {
        let bars = output::is_terminal().then(|| Bars::new(multi));
        Self { rates: Rates::default(), last: Instant::now(), bars }
    }

    /// Time between two pictures.
    pub(crate) const fn pace(&self) -> Duration {
        if self.bars.is_some() { BARS_EVERY } else { SUMMARY_EVERY }
    }

    /// Shows a picture.
    pub(crate) fn show(&mut self, now: &Snapshot) {
        self.rates.read(now, self.last.elapsed());
        self.last = Instant::now();
        match &mut self.bars {
            Some(bars) => bars.show(now, &self.rates),
            None => log(&self.rates.summary(now)),
        }
    }

    /// Takes the bars away; what follows is ordinary output.
    pub(crate) fn finish(self) {
        if let Some(bars) = self.bars {
            bars.clear();
        }
    }
}

impl Bars {
    fn new(multi: MultiProgress) -> Self {
        let stream = multi.add(bar());
        Self { multi, stream, tables: BTreeMap::new() }
    }

    fn show(&mut self, now: &Snapshot, rates: &Rates) {
        let gone: Vec<_> = self
            .tables
            .keys()
            .filter(|table| !now.copying().any(|(entry, _)| entry.table == **table))
            .copied()
            .collect();
        for table in gone {
            if let Some(bar) = self.tables.remove(&table) {
                bar.finish_and_clear();
            }
        }
        for (entry, copy) in now.copying() {
            let bar = self
                .tables
                .entry(entry.table)
                .or_insert_with(|| self.multi.insert_before(&self.stream, bar()));
            bar.set_message(rates.table_line(entry, copy));
            bar.tick();
        }
        self.stream.set_message(rates.stream_line(now));
        self.stream.tick();
    }

    fn clear(self) {
        for bar in self.tables.into_values() {
            bar.finish_and_clear();
        }
        self.stream.finish_and_clear();
    }
}

fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {wide_msg}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner());
    ProgressBar::new_spinner().with_style(style)
}

/// Logs a notice; `name` names a table.
pub(crate) fn tell(notice: &Notice, name: &dyn Fn(TableId) -> String) {
    if let Some(line) = progress::line(notice, name) {
        log(&line);
    }
}

fn log(line: &Line) {
    let Line { text, table, .. } = line;
    let (table, slot) = (table.as_deref(), line.slot.as_deref());
    let lsn = line.lsn.map(tracing::field::display);
    match line.level {
        Level::ERROR => tracing::error!(table, lsn, slot, "{text}"),
        Level::WARN => tracing::warn!(table, lsn, slot, "{text}"),
        _ => tracing::info!(table, lsn, slot, "{text}"),
    }
}
