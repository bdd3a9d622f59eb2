//! The writer: sessions of psql that get one transaction after the other and report what became of
//! it.

use core::time::Duration;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use crate::demo::Failure;
use crate::demo::schema::Sizes;
use crate::demo::script::{SESSIONS, Script, UNDO};

/// Time between two transactions of a session: a load that leaves the machine room to copy.
const PACE: Duration = Duration::from_millis(5);

/// What was written, as the server counted it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) committed: Amount,
    pub(super) rolled_back: Amount,
    /// Tables emptied by truncates that were committed.
    pub(super) truncates: u64,
}

/// Transactions and the rows they changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) transactions: u64,
    pub(super) changes: u64,
}

/// Running sessions.
pub(super) struct Writer {
    orders: Arc<Orders>,
    sessions: Vec<JoinHandle<Result<Written, Failure>>>,
}

#[derive(Default)]
struct Orders {
    stop: AtomicBool,
    inbox_too: AtomicBool,
}

impl Writer {
    /// Starts all sessions; each call of `psql` makes a command that reads SQL from its input.
    pub(super) fn start(
        seed: u64,
        sizes: Sizes,
        psql: impl Fn() -> Command,
    ) -> Result<Self, Failure> {
        let orders = Arc::<Orders>::default();
        let mut writer = Self { orders: Arc::clone(&orders), sessions: Vec::new() };
        for session in 0..SESSIONS {
            let mut psql = Psql::start(psql())?;
            let mut script = Script::new(seed, session, sizes);
            let orders = Arc::clone(&orders);
            writer.sessions.push(thread::spawn(move || psql.write(&mut script, &orders)));
        }
        Ok(writer)
    }

    /// From here on `inbox` is written and truncated too.
    pub(super) fn touch_inbox(&self) {
        self.orders.inbox_too.store(true, Ordering::Relaxed);
    }

    /// Whether a session has ended by itself.
    pub(super) fn has_failed(&self) -> bool {
        self.sessions.iter().any(JoinHandle::is_finished)
    }

    /// Ends the sessions after their current transaction.
    pub(super) fn stop(mut self) -> Result<Written, Failure> {
        self.orders.stop.store(true, Ordering::Relaxed);
        let mut all = Written::default();
        for session in self.sessions.drain(..) {
            let ended = session.join();
            all.add(ended.map_err(|_| Failure::new("the writer failed", "a thread panicked"))??);
        }
        Ok(all)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.orders.stop.store(true, Ordering::Relaxed);
    }
}

impl Written {
    fn add(&mut self, other: Self) {
        for (sum, more) in
            [(&mut self.committed, other.committed), (&mut self.rolled_back, other.rolled_back)]
        {
            sum.transactions += more.transactions;
            sum.changes += more.changes;
        }
        self.truncates += other.truncates;
    }
}

struct Psql {
    child: Child,
    input: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Psql {
    fn start(mut command: Command) -> Result<Self, Failure> {
        let failed = |why: &dyn std::fmt::Display| Failure::new("psql does not start", why);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| failed(&error))?;
        let (input, answers) = (child.stdin.take(), child.stdout.take());
        let answers = BufReader::new(answers.ok_or_else(|| failed(&"it has no output"))?);
        Ok(Self { child, input, answers })
    }

    fn write(&mut self, script: &mut Script, orders: &Orders) -> Result<Written, Failure> {
        let mut written = Written::default();
        while !orders.stop.load(Ordering::Relaxed) {
            let next = Instant::now() + PACE;
            let sql = script.transaction(orders.inbox_too.load(Ordering::Relaxed));
            self.transact(&sql, &mut written)?;
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        if let Some(sql) = script.last() {
            self.transact(&sql, &mut written)?;
        }
        Ok(written)
    }

    fn transact(&mut self, sql: &str, written: &mut Written) -> Result<(), Failure> {
        let sent = self.input.as_mut().map(|input| input.write_all(sql.as_bytes()));
        match (sent, Transaction::follow(&mut self.answers)) {
            (Some(Ok(())), Some(transaction)) => {
                transaction.count(written);
                Ok(())
            }
            _ => Err(self.failure()),
        }
    }

    fn failure(&mut self) -> Failure {
        drop(self.input.take());
        let mut text = String::new();
        if let Some(mut errors) = self.child.stderr.take() {
            drop(errors.read_to_string(&mut text));
        }
        Failure::new("the writer's psql failed", text.trim())
    }
}

/// Ends psql: it leaves at the end of its input.
impl Drop for Psql {
    fn drop(&mut self) {
        drop(self.input.take());
        drop(self.child.wait());
    }
}

/// One transaction, as psql's command tags tell it.
#[derive(Debug, Default)]
struct Transaction {
    committed: bool,
    changes: u64,
    undone: u64,
    truncates: u64,
    /// What stood when each open savepoint was made: changes, truncates.
    savepoints: Vec<(u64, u64)>,
    undo: bool,
}

impl Transaction {
    /// Reads to the end of one transaction; `None` if psql ends before.
    fn follow(answers: &mut impl BufRead) -> Option<Self> {
        let mut transaction = Self::default();
        let mut line = String::new();
        loop {
            line.clear();
            if !matches!(answers.read_line(&mut line), Ok(1..)) {
                return None;
            }
            if transaction.takes(line.trim_end()) {
                return Some(transaction);
            }
        }
    }

    /// Takes one line in; true if it ends the transaction.
    fn takes(&mut self, line: &str) -> bool {
        match line {
            UNDO => self.undo = true,
            "COMMIT" => {
                self.committed = true;
                return true;
            }
            "ROLLBACK" if self.undo => {
                self.undo = false;
                let (changes, truncates) = self.savepoints.last().copied().unwrap_or_default();
                self.undone += self.changes - changes;
                (self.changes, self.truncates) = (changes, truncates);
            }
            "ROLLBACK" => return true,
            "SAVEPOINT" => self.savepoints.push((self.changes, self.truncates)),
            "RELEASE" => drop(self.savepoints.pop()),
            "TRUNCATE TABLE" => self.truncates += 1,
            _ => {
                let mut words = line.split(' ');
                if matches!(words.next(), Some("INSERT" | "UPDATE" | "DELETE")) {
                    self.changes += words.next_back().and_then(|n| n.parse().ok()).unwrap_or(0);
                }
            }
        }
        false
    }

    fn count(&self, written: &mut Written) {
        if self.committed {
            written.committed.transactions += 1;
            written.committed.changes += self.changes;
            written.rolled_back.changes += self.undone;
            written.truncates += self.truncates;
        } else {
            written.rolled_back.transactions += 1;
            written.rolled_back.changes += self.undone + self.changes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(answers: &str) -> Written {
        let mut answers = answers.as_bytes();
        let mut written = Written::default();
        while let Some(transaction) = Transaction::follow(&mut answers) {
            transaction.count(&mut written);
        }
        written
    }

    #[test]
    fn what_was_rolled_back_is_counted_apart() {
        let simple = written("BEGIN\nINSERT 0 3\nUPDATE 2\nDELETE 1\nTRUNCATE TABLE\nCOMMIT\n");
        assert_eq!(simple.committed, Amount { transactions: 1, changes: 6 });
        assert_eq!((simple.rolled_back, simple.truncates), (Amount::default(), 1));

        let undone = written("BEGIN\nUPDATE 4\nTRUNCATE TABLE\nROLLBACK\nBEGIN\n");
        assert_eq!(undone.committed, Amount::default());
        assert_eq!(undone.rolled_back, Amount { transactions: 1, changes: 4 });
        assert_eq!(undone.truncates, 0);
    }

    #[test]
    fn savepoints_nest() {
        let text = "BEGIN\nINSERT 0 1\nSAVEPOINT\nINSERT 0 10\nSAVEPOINT\nINSERT 0 100\n#undo\n\
                    ROLLBACK\nINSERT 0 1000\nRELEASE\n#undo\nROLLBACK\n\nDELETE 1\nCOMMIT\n";
        // The inner savepoint is released after it was undone once; the outer one undoes the rest.
        let undone = written(text);
        assert_eq!(undone.committed, Amount { transactions: 1, changes: 2 });
        assert_eq!(undone.rolled_back, Amount { transactions: 0, changes: 1_110 });
    }
}
