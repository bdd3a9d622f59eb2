//! The source against real servers.

#![expect(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    clippy::too_many_lines,
    reason = "a test that cannot go on has failed, looks for few of many events, and tells one story"
)]

/// Stamps one test per server version out of a function that takes the major version.
macro_rules! on_servers {
    ($body:ident: $($name:ident = $major:literal),+ $(,)?) => {
        mod $body {
            $(
                #[test]
                fn $name() {
                    super::$body($major);
                }
            )+
        }
    };
}

mod connect;
mod copy;
mod elsewhere;
mod failover;
mod ranges;
mod schema;
mod skip;
mod slots;
mod stream;
mod support;
