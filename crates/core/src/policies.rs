//! What a person decides beforehand (spec chapter 30): each policy says what becomes of a case that
//! walferry could handle in two ways. Reject is the default wherever data may be missing.

use std::collections::BTreeSet;

use crate::config::ConfigError;

/// What becomes of a main slot that is gone (I-01).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SlotLoss {
    /// The run ends.
    #[default]
    Reject,
    /// The slot is created again and every table is copied anew.
    Recreate,
}

/// What becomes of a promotion that may have lost events already delivered (P-06).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PromotionLoss {
    /// The run ends.
    #[default]
    Reject,
    /// The slot is created again and every table is copied anew (P-09).
    Resync,
}

/// What becomes of a table whose rows may differ without any event (T-11, D-15).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Doubt {
    /// It is copied anew.
    #[default]
    Recopy,
    /// It is reported and goes on.
    Report,
}

/// Which tables are copied; the others are adopted as they are (K-18).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CopyFilter {
    /// Every table.
    #[default]
    All,
    /// No table.
    None,
    /// These, as `schema.table`.
    Only(BTreeSet<String>),
    /// All but these, as `schema.table`.
    AllBut(BTreeSet<String>),
}

/// All of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policies {
    /// Whether slots shall survive a failover of the source (17 and newer).
    pub slot_failover: bool,
    /// I-01.
    pub slot_loss: SlotLoss,
    /// P-06.
    pub promotion_loss: PromotionLoss,
    /// T-11.
    pub membership_change: Doubt,
    /// D-15.
    pub silent_rewrite: Doubt,
    /// K-18.
    pub copy: CopyFilter,
}

impl CopyFilter {
    /// Whether a table is copied.
    #[must_use]
    pub fn copies(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Only(names) => names.contains(name),
            Self::AllBut(names) => !names.contains(name),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let names = |list: &str| {
            let names: BTreeSet<_> =
                list.split(',').map(str::trim).filter(|n| !n.is_empty()).map(qualified).collect();
            (!names.is_empty()).then_some(names)
        };
        match text.split_once(':') {
            None if text == "all" => Some(Self::All),
            None if text == "none" => Some(Self::None),
            Some(("only", list)) => names(list).map(Self::Only),
            Some(("all_but", list)) => names(list).map(Self::AllBut),
            None | Some(_) => None,
        }
    }
}

/// Without a schema, public is meant.
fn qualified(name: &str) -> String {
    if name.contains('.') { name.to_owned() } else { format!("public.{name}") }
}

impl Policies {
    /// Names of all policies, as settings.
    pub const KEYS: &'static [&'static str] = &[
        "slot_failover",
        "slot_loss",
        "promotion_loss",
        "membership_change",
        "silent_rewrite",
        "copy",
    ];

    /// Sets one policy from text; `None` if there is none of this name.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Option<Result<(), ConfigError>> {
        let done = match key {
            "slot_failover" => word(
                &mut self.slot_failover,
                "slot_failover",
                value,
                &[("off", false), ("on", true)],
            ),
            "slot_loss" => {
                let words = [("reject", SlotLoss::Reject), ("recreate", SlotLoss::Recreate)];
                word(&mut self.slot_loss, "slot_loss", value, &words)
            }
            "promotion_loss" => {
                let words = [("reject", PromotionLoss::Reject), ("resync", PromotionLoss::Resync)];
                word(&mut self.promotion_loss, "promotion_loss", value, &words)
            }
            "membership_change" => {
                word(&mut self.membership_change, "membership_change", value, &DOUBTS)
            }
            "silent_rewrite" => word(&mut self.silent_rewrite, "silent_rewrite", value, &DOUBTS),
            "copy" => match CopyFilter::parse(value) {
                Some(filter) => {
                    self.copy = filter;
                    Ok(())
                }
                None => Err(ConfigError::OutOfRange {
                    key: "copy",
                    found: value.to_owned(),
                    allowed: "all, none, only:TABLE,.. or all_but:TABLE,..".to_owned(),
                }),
            },
            _ => return None,
        };
        Some(done)
    }
}

const DOUBTS: [(&str, Doubt); 2] = [("recopy", Doubt::Recopy), ("report", Doubt::Report)];

fn word<T: Copy>(
    policy: &mut T,
    key: &'static str,
    value: &str,
    words: &[(&str, T)],
) -> Result<(), ConfigError> {
    match words.iter().find(|(text, _)| *text == value) {
        Some((_, meaning)) => {
            *policy = *meaning;
            Ok(())
        }
        None => Err(ConfigError::OutOfRange {
            key,
            found: value.to_owned(),
            allowed: words.iter().map(|(text, _)| *text).collect::<Vec<_>>().join(" or "),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_takes_its_words_and_nothing_else() {
        let mut policies = Policies::default();
        for (key, good) in [
            ("slot_failover", "on"),
            ("slot_loss", "recreate"),
            ("promotion_loss", "resync"),
            ("membership_change", "report"),
            ("silent_rewrite", "report"),
            ("copy", "none"),
        ] {
            assert_eq!(policies.set(key, good), Some(Ok(())), "{key}");
            assert!(matches!(policies.set(key, "maybe"), Some(Err(_))), "{key}");
        }
        let all = Policies {
            slot_failover: true,
            slot_loss: SlotLoss::Recreate,
            promotion_loss: PromotionLoss::Resync,
            membership_change: Doubt::Report,
            silent_rewrite: Doubt::Report,
            copy: CopyFilter::None,
        };
        assert_eq!(policies, all);
        assert_eq!(policies.set("slot_los", "reject"), None);
    }

    // K-18
    #[test]
    fn a_copy_filter_names_tables_with_or_without_their_schema() {
        let filter =
            |text| CopyFilter::parse(text).map(|f| (f.copies("public.a"), f.copies("x.a")));
        assert_eq!(filter("all"), Some((true, true)));
        assert_eq!(filter("none"), Some((false, false)));
        assert_eq!(filter("only:a, x.b"), Some((true, false)));
        assert_eq!(filter("all_but:x.a"), Some((true, false)));
        assert_eq!(filter("only:"), None);
        assert_eq!(filter("some"), None);
    }
}
