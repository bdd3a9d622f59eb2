//! Copies through the two enums of the boundary: readers, repeated batches, adoption, persistent
//! copy slots, reports. Also what start-up makes of the main slot and of the source's timeline.

#![expect(
    clippy::wildcard_enum_match_arm,
    clippy::expect_used,
    clippy::panic,
    reason = "a test looks for few of many kinds of work, and one that cannot go on has failed"
)]

mod adopt;
mod messages;
mod promotion;
mod readers;
mod recreation;
mod repeated;
mod script;
mod silence;
mod slots;
mod start;
mod stop;
