//! The contract tests of spec group DS over our destinations. Each test is one case.

mod common;

use common::{Jsonl, Sqlite};
use walferry_destinations::kit::{Case, check};

macro_rules! contract {
    ($module:ident, $subject:expr, $($name:ident: $case:ident,)*) => {
        mod $module {
            use super::*;
            $(
                #[tokio::test]
                async fn $name() {
                    if let Err(failure) = check(Case::$case, &$subject).await {
                        panic!("{failure}");
                    }
                }
            )*

            #[test]
            fn every_case_is_here() {
                assert_eq!([$(Case::$case),*], Case::ALL);
            }
        }
    };
}

macro_rules! all_cases {
    ($module:ident, $subject:expr) => {
        contract! { $module, $subject,
            ct_01_each_batch_once_more: Ct01,
            ct_02_every_suffix_cut_otherwise: Ct02,
            ct_03_crash_between_fragments: Ct03,
            ct_04_copy_batches_replayed_reordered_parallel: Ct04,
            ct_05_crash_between_every_two_operations: Ct05,
            ct_06_key_changes: Ct06,
            ct_07_unchanged_values: Ct07,
            ct_08_truncates: Ct08,
            ct_10_empty_table: Ct10,
            ct_11_vanished_rows: Ct11,
            ct_12_foreign_rows: Ct12,
            ct_13_late_calls: Ct13,
            ct_14_watermarks_are_per_table: Ct14,
            ct_15_durability: Ct15,
            ct_16_one_key_again_and_again: Ct16,
            ct_17_lanes: Ct17,
            ct_18_errors_name_their_table: Ct18,
        }
    };
}

all_cases!(sqlite, Sqlite::new());
all_cases!(jsonl, Jsonl::new());
