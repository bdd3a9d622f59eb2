//! The thread that owns the connection: takes commands, answers them.

use std::path::Path;
use std::sync::PoisonError;
use std::sync::mpsc::Receiver;

use rusqlite::Connection;

use super::session::Session;
use super::{Command, Interrupt, not_started, open};

/// Serves until nobody sends any more. The file is opened by the first startup that succeeds.
pub(super) fn run(file: &Path, interrupt: &Interrupt, commands: &Receiver<Command>) {
    while let Ok(command) = commands.recv() {
        match command {
            Command::Startup { claim, answer } => match open::open(file, &claim) {
                Ok(connection) => {
                    hold(interrupt, Some(&connection));
                    answer.send(Ok(()));
                    serve(&connection, file, commands);
                    hold(interrupt, None);
                }
                Err(error) => answer.send(Err(error)),
            },
            Command::Begin { answer, .. } => answer.send(Err(not_started(file))),
            Command::Rows { answer, .. } => answer.send(Err(not_started(file))),
            Command::Finish { answer, .. } => answer.send(Err(not_started(file))),
            Command::Changes { answer, .. } => answer.send(Err(not_started(file))),
            Command::Shutdown { answer } => answer.send(Ok(())),
        }
    }
}

fn hold(interrupt: &Interrupt, connection: Option<&Connection>) {
    let mut handle = interrupt.0.lock().unwrap_or_else(PoisonError::into_inner);
    *handle = connection.map(Connection::get_interrupt_handle);
}

/// Serves an open file until shutdown.
fn serve(connection: &Connection, file: &Path, commands: &Receiver<Command>) {
    let mut session = Session::new(connection, file);
    while let Ok(command) = commands.recv() {
        match command {
            Command::Startup { claim, answer } => answer.with(|_| {
                session.forget_all();
                open::claim(connection, file, &claim)
            }),
            Command::Begin { start, answer } => {
                answer.with(|answer| session.begin_copy(&start, answer));
            }
            Command::Rows { batch, answer } => {
                answer.with(|answer| session.write_rows(&batch, answer));
            }
            Command::Finish { finish, answer } => {
                answer.with(|answer| session.finish_copy(finish, answer));
            }
            Command::Changes { batch, answer } => {
                answer.with(|answer| session.write_changes(&batch, answer));
            }
            Command::Shutdown { answer } => {
                session.forget_all();
                drop(session);
                answer.send(open::checkpoint(connection, file));
                return;
            }
        }
    }
}
