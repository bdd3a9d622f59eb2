//! An error as people see it: what, why, and what to do; and the exit code that goes with it.

use walferry_core::config::{ConfigError, Limits};
use walferry_core::fault::{Fault, FaultKind, Origin};
use walferry_core::policies::Policies;
use walferry_store::{StoreError, StoreUrlError};

use crate::exit_code::{ExitCode, Signal};
use crate::hints::{self, Surroundings};

/// Why a verb failed.
#[derive(Debug)]
pub(crate) struct CliError {
    /// What was attempted and failed, in one line.
    pub(crate) what: String,
    /// The cause, in one line.
    pub(crate) why: String,
    /// What to do next.
    pub(crate) hints: Vec<String>,
    pub(crate) exit: ExitCode,
}

impl CliError {
    /// A wrong command line or setting.
    pub(crate) fn usage(what: impl Into<String>, why: impl ToString) -> Self {
        Self {
            what: what.into(),
            why: why.to_string(),
            hints: Vec::new(),
            exit: ExitCode::Configuration,
        }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// A failure of the pipeline or of one of its parts.
    pub(crate) fn of_fault(
        action: &str,
        fault: &Fault,
        signal: Option<Signal>,
        surroundings: &Surroundings,
    ) -> Self {
        Self {
            what: format!("{action} failed"),
            why: one_line(&cause(fault)),
            hints: hints::of_fault(fault, surroundings),
            exit: ExitCode::of_fault(&fault.kind, fault.origin, signal),
        }
    }

    /// The store said what is wrong, and what to do.
    pub(crate) fn of_store(action: &str, error: &StoreError) -> Self {
        Self {
            what: format!("{action} failed"),
            why: one_line(&error.chain()),
            hints: vec![error.next_step()],
            exit: ExitCode::Store,
        }
    }

    pub(crate) fn of_setting(error: &ConfigError) -> Self {
        let known = [Limits::KEYS, Policies::KEYS].concat().join(", ");
        let usage = Self::usage("a setting was refused", error);
        match error {
            ConfigError::UnknownKey { .. } => usage.hint(format!("settings are {known}")),
            ConfigError::OutOfRange { .. } => usage,
        }
    }

    pub(crate) fn of_state_url(error: &StoreUrlError) -> Self {
        Self::usage("--state was refused", error)
            .hint("name a directory, for example --state file:/var/lib/walferry/app")
    }
}

/// What the store or a setting says is complete; elsewhere the kind says what the message leaves out.
pub(crate) fn cause(fault: &Fault) -> String {
    let complete =
        fault.origin == Origin::Store || matches!(fault.kind, FaultKind::Configuration { .. });
    if complete && !fault.message.is_empty() {
        return fault.message.clone();
    }
    fault.to_string()
}

/// Line ends and other control characters as spaces: a message never forges a line of its own.
pub(crate) fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
