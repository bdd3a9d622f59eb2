//! What a failure leads to: the one exhaustive decision (E-02, E-I1), the table of server codes
//! (Y-05), and the delay before a retry (Y-08).

use core::time::Duration;

use sha2::{Digest, Sha256};

use crate::config::Limits;
use crate::fault::{Blame, DestinationClass, Fault, FaultKind, SqlState};
use crate::record::Policy;

/// Where a failure happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a copy attempt of one table.
    Attempt,
    /// On the main stream, the main lane or in start-up.
    Main,
}

/// What a failure leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The attempt ends without blame, or the run ends in order.
    Stopped,
    /// The run ends with this failure.
    EndRun,
    /// A transient failure of the main scope: repeated, within `main_retries_max`.
    Repeat,
    /// A transient failure of an attempt: a new attempt after a delay, within `retries_max`.
    Retry,
    /// The table stops until somebody acts.
    Errored(Policy),
    /// The main slot is lost: policy `slot_loss` decides.
    SlotLoss,
    /// The source may have been promoted: group P decides.
    Promotion,
}

/// The table of spec chapter 27.
#[must_use]
pub const fn decide(kind: &FaultKind, place: Place) -> Decision {
    match place {
        Place::Attempt => decide_attempt(kind),
        Place::Main => decide_main(kind),
    }
}

/// As `decide`, with what a destination says about the reach of its failure: one that would meet every
/// table in the same way must not stop them one by one (K-23, DS-10).
#[must_use]
pub const fn decide_fault(fault: &Fault, place: Place) -> Decision {
    let whole_sink = matches!(fault.blame, Blame::Sink);
    let lasting = matches!(
        fault.kind,
        FaultKind::Destination { class: DestinationClass::Manual | DestinationClass::Permanent }
            | FaultKind::FlushFailed {
                class: DestinationClass::Manual | DestinationClass::Permanent
            }
    );
    if whole_sink && lasting { Decision::EndRun } else { decide(&fault.kind, place) }
}

const fn decide_attempt(kind: &FaultKind) -> Decision {
    match kind {
        FaultKind::Stopped => Decision::Stopped,
        FaultKind::SlotMissing { .. }
        | FaultKind::SlotInvalidated { .. }
        | FaultKind::Transport
        | FaultKind::Timeout { .. } => Decision::Retry,
        FaultKind::Server { code } => {
            if is_transient(*code) || is_transient_in_attempt(*code) {
                Decision::Retry
            } else {
                Decision::Errored(Policy::Manual)
            }
        }
        FaultKind::SlotAhead { .. }
        | FaultKind::SlotForeign { .. }
        | FaultKind::CheckpointAhead { .. }
        | FaultKind::Authentication
        | FaultKind::Configuration { .. }
        | FaultKind::EntropyUnavailable
        | FaultKind::Protocol
        | FaultKind::Conversion
        | FaultKind::Limit { .. } => Decision::Errored(Policy::Manual),
        FaultKind::Destination { class } | FaultKind::FlushFailed { class } => match class {
            DestinationClass::Transient { .. } => Decision::Retry,
            DestinationClass::Manual => Decision::Errored(Policy::Manual),
            DestinationClass::Permanent => Decision::Errored(Policy::None),
            DestinationClass::Fenced => Decision::EndRun,
        },
        FaultKind::TimelineChanged { .. } => Decision::Promotion,
        FaultKind::StoreFailed
        | FaultKind::StoreFenced
        | FaultKind::StoreLocked { .. }
        | FaultKind::IdentityMismatch { .. }
        | FaultKind::HorizonBeyondFork { .. }
        | FaultKind::RecreationPending
        | FaultKind::PublicationMissing { .. }
        | FaultKind::PublicationEmpty { .. }
        | FaultKind::RecordCorrupt
        | FaultKind::RecordInvalid { .. }
        | FaultKind::RecordTooNew { .. }
        | FaultKind::StopTimeout
        | FaultKind::Violation => Decision::EndRun,
    }
}

const fn decide_main(kind: &FaultKind) -> Decision {
    match kind {
        FaultKind::Stopped => Decision::Stopped,
        FaultKind::TimelineChanged { .. } => Decision::Promotion,
        FaultKind::SlotMissing { .. } | FaultKind::SlotInvalidated { .. } => Decision::SlotLoss,
        FaultKind::Transport | FaultKind::Timeout { .. } => Decision::Repeat,
        FaultKind::Server { code } => {
            if is_transient(*code) {
                Decision::Repeat
            } else {
                Decision::EndRun
            }
        }
        FaultKind::Destination { class } | FaultKind::FlushFailed { class } => match class {
            DestinationClass::Transient { .. } => Decision::Repeat,
            DestinationClass::Manual | DestinationClass::Permanent | DestinationClass::Fenced => {
                Decision::EndRun
            }
        },
        FaultKind::StoreFailed
        | FaultKind::StoreFenced
        | FaultKind::StoreLocked { .. }
        | FaultKind::SlotAhead { .. }
        | FaultKind::SlotForeign { .. }
        | FaultKind::CheckpointAhead { .. }
        | FaultKind::IdentityMismatch { .. }
        | FaultKind::HorizonBeyondFork { .. }
        | FaultKind::RecreationPending
        | FaultKind::PublicationMissing { .. }
        | FaultKind::PublicationEmpty { .. }
        | FaultKind::RecordCorrupt
        | FaultKind::RecordInvalid { .. }
        | FaultKind::RecordTooNew { .. }
        | FaultKind::Authentication
        | FaultKind::Configuration { .. }
        | FaultKind::EntropyUnavailable
        | FaultKind::Protocol
        | FaultKind::Conversion
        | FaultKind::Limit { .. }
        | FaultKind::StopTimeout
        | FaultKind::Violation => Decision::EndRun,
    }
}

/// Codes that may pass by themselves (Y-05). Class 08 is the connection, except 08P01, a protocol
/// violation.
const fn is_transient(code: SqlState) -> bool {
    matches!(
        &code.0,
        b"57P01" | b"57P02" | b"57P03" | b"55P03" | b"55006" | b"53100" | b"53200" | b"53300"
    ) || (matches!(&code.0, [b'0', b'8', ..]) && !matches!(&code.0, b"08P01"))
}

/// Codes that may pass in an attempt as well: no free slot, cancelled by a person, and a snapshot
/// that is gone (22023, on 18 also 42704, at its import: K-10).
const fn is_transient_in_attempt(code: SqlState) -> bool {
    matches!(&code.0, b"53400" | b"57014" | b"22023" | b"42704")
}

/// Delay before retry `n` (from 1) of a scope: doubling up to a bound, times a factor in
/// [0.8, 1.2] derived from the seed, so that the same seed gives the same delays (Y-08, Y-I4).
#[must_use]
pub fn delay(limits: &Limits, seed: &[u8], scope: u32, n: u32) -> Duration {
    let doubled = limits.retry_ms.saturating_mul(1 << n.saturating_sub(1).min(40));
    let base = doubled.min(limits.retry_ms_max);
    let mut hash = Sha256::new();
    hash.update(seed);
    hash.update(scope.to_be_bytes());
    hash.update(n.to_be_bytes());
    let digest = hash.finalize();
    let permille = 800 + u64::from(u16::from_be_bytes([digest[0], digest[1]])) * 400 / 65_535;
    Duration::from_millis(base.saturating_mul(permille) / 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(code: &str) -> FaultKind {
        FaultKind::Server { code: SqlState::parse(code) }
    }

    fn destination(class: DestinationClass) -> [FaultKind; 2] {
        [FaultKind::Destination { class }, FaultKind::FlushFailed { class }]
    }

    // E-I1: one line per row of the table of chapter 27
    #[test]
    #[expect(clippy::too_many_lines, reason = "one line for each row of the table")]
    fn each_kind_leads_where_the_table_says() {
        use Decision::{EndRun, Errored, Promotion, Repeat, Retry, SlotLoss, Stopped};
        let text = String::new;
        let lsn = crate::lsn::Lsn(1);
        let position = crate::lsn::Position(lsn);
        let manual = Errored(Policy::Manual);
        let mut rows = vec![
            (FaultKind::Stopped, Stopped, Stopped),
            (FaultKind::StoreFailed, EndRun, EndRun),
            (FaultKind::StoreFenced, EndRun, EndRun),
            (FaultKind::StoreLocked { holder: text() }, EndRun, EndRun),
            (FaultKind::TimelineChanged { expected: 1, found: 2 }, Promotion, Promotion),
            (FaultKind::SlotMissing { slot: text() }, Retry, SlotLoss),
            (FaultKind::SlotInvalidated { slot: text(), reason: text() }, Retry, SlotLoss),
            (
                FaultKind::SlotAhead { slot: text(), found: lsn, checkpoint: position },
                manual,
                EndRun,
            ),
            (
                FaultKind::SlotForeign {
                    slot: text(),
                    field: "plugin",
                    expected: text(),
                    found: text(),
                },
                manual,
                EndRun,
            ),
            (FaultKind::CheckpointAhead { found: lsn, checkpoint: position }, manual, EndRun),
            (
                FaultKind::IdentityMismatch { field: "x", expected: text(), found: text() },
                EndRun,
                EndRun,
            ),
            (
                FaultKind::HorizonBeyondFork { horizon: Some(position), fork: position },
                EndRun,
                EndRun,
            ),
            (FaultKind::RecreationPending, EndRun, EndRun),
            (FaultKind::PublicationMissing { name: text() }, EndRun, EndRun),
            (FaultKind::PublicationEmpty { name: text() }, EndRun, EndRun),
            (FaultKind::RecordCorrupt, EndRun, EndRun),
            (FaultKind::RecordInvalid { field: text() }, EndRun, EndRun),
            (FaultKind::RecordTooNew { found: 2, known: 1 }, EndRun, EndRun),
            (FaultKind::Transport, Retry, Repeat),
            (FaultKind::Timeout { budget: Duration::ZERO }, Retry, Repeat),
            (FaultKind::Authentication, manual, EndRun),
            (
                FaultKind::Configuration { setting: "x", expected: text(), found: text() },
                manual,
                EndRun,
            ),
            (FaultKind::EntropyUnavailable, manual, EndRun),
            (FaultKind::Protocol, manual, EndRun),
            (FaultKind::Conversion, manual, EndRun),
            (FaultKind::Limit { name: "x" }, manual, EndRun),
            (FaultKind::StopTimeout, EndRun, EndRun),
            (FaultKind::Violation, EndRun, EndRun),
        ];
        for class in [
            (DestinationClass::Transient { retry_after: None }, Retry, Repeat),
            (DestinationClass::Manual, manual, EndRun),
            (DestinationClass::Permanent, Errored(Policy::None), EndRun),
            (DestinationClass::Fenced, EndRun, EndRun),
        ] {
            rows.extend(destination(class.0).map(|kind| (kind, class.1, class.2)));
        }
        for (kind, attempt, main) in rows {
            assert_eq!(decide(&kind, Place::Attempt), attempt, "{kind:?} in an attempt");
            assert_eq!(decide(&kind, Place::Main), main, "{kind:?} on main");
        }
        walferry_coverage::reached("E-I1");
    }

    // K-23, DS-10, E-I1: blame on the sink as a whole makes a lasting failure one of the run
    #[test]
    fn a_failure_of_the_whole_sink_stops_no_single_table() {
        use Decision::{EndRun, Errored, Repeat, Retry};
        let tables = |no_effect_on_others| Blame::Tables {
            tables: vec![crate::ids::TableId(1)],
            no_effect_on_others,
        };
        let transient = DestinationClass::Transient { retry_after: None };
        let rows = [
            (transient, Blame::Sink, Retry, Repeat),
            (DestinationClass::Manual, Blame::Sink, EndRun, EndRun),
            (DestinationClass::Permanent, Blame::Sink, EndRun, EndRun),
            (DestinationClass::Fenced, Blame::Sink, EndRun, EndRun),
            (DestinationClass::Manual, Blame::Unstated, Errored(Policy::Manual), EndRun),
            (DestinationClass::Permanent, Blame::Unstated, Errored(Policy::None), EndRun),
            (DestinationClass::Manual, tables(true), Errored(Policy::Manual), EndRun),
            (DestinationClass::Permanent, tables(false), Errored(Policy::None), EndRun),
        ];
        for (class, blame, attempt, main) in rows {
            for kind in destination(class) {
                let mut fault = Fault::found(crate::fault::Origin::Destination, kind);
                fault.blame = blame.clone();
                assert_eq!(decide_fault(&fault, Place::Attempt), attempt, "{fault:?}");
                assert_eq!(decide_fault(&fault, Place::Main), main, "{fault:?}");
            }
        }
        let mut fault = Fault::found(crate::fault::Origin::Source, FaultKind::Protocol);
        fault.blame = Blame::Sink;
        let manual = Errored(Policy::Manual);
        assert_eq!(decide_fault(&fault, Place::Attempt), manual, "only a destination is blamed");
    }

    // Y-05
    #[test]
    fn server_codes_follow_the_table() {
        for code in
            ["57P01", "57P02", "57P03", "55P03", "55006", "53100", "53200", "53300", "08006"]
        {
            assert_eq!(decide(&server(code), Place::Main), Decision::Repeat, "{code}");
            assert_eq!(decide(&server(code), Place::Attempt), Decision::Retry, "{code}");
        }
        for code in ["53400", "57014", "22023", "42704"] {
            assert_eq!(decide(&server(code), Place::Main), Decision::EndRun, "{code}");
            assert_eq!(decide(&server(code), Place::Attempt), Decision::Retry, "{code}");
        }
        for code in ["08P01", "42501", "42P01", "XX000"] {
            assert_eq!(decide(&server(code), Place::Main), Decision::EndRun, "{code}");
            let manual = Decision::Errored(Policy::Manual);
            assert_eq!(decide(&server(code), Place::Attempt), manual, "{code}");
        }
    }

    // Y-08, Y-I4
    #[test]
    fn delays_double_up_to_the_bound_within_a_fifth_and_repeat_with_the_seed() {
        let limits = Limits::default();
        for n in 1..80 {
            let base = 5_000_u64.saturating_mul(1 << (n - 1).min(40)).min(300_000);
            let found = delay(&limits, &[1; 20], 7, n).as_millis();
            assert!((u128::from(base) * 8 / 10..=u128::from(base) * 12 / 10).contains(&found));
            assert_eq!(delay(&limits, &[1; 20], 7, n), delay(&limits, &[1; 20], 7, n));
        }
        let one = (1..20).map(|n| delay(&limits, &[1; 20], 7, n)).collect::<Vec<_>>();
        let other = (1..20).map(|n| delay(&limits, &[2; 20], 7, n)).collect::<Vec<_>>();
        assert_ne!(one, other);
        walferry_coverage::reached("Y-I4");
    }
}
