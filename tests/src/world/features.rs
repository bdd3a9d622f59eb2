//! Which groups of the spec the core has, so that a game throws only what it can answer. A feature
//! is one word to switch on; each game then draws by its seed whether it uses it.

/// What games may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "one answer per group")]
pub struct Features {
    /// The publication is listed while running, so tables come and go then (T-03).
    pub listings: bool,
    /// Schema changes are followed (D).
    pub schema: bool,
    /// A permanent error on main sets its tables aside.
    pub quarantine: bool,
    /// A lost main slot is created again (I).
    pub recreation: bool,
    /// Promotions are followed (P).
    pub promotion: bool,
    /// Tables may be adopted (K-18).
    pub adoption: bool,
    /// Several readers copy one table (K-20).
    pub readers: bool,
    /// A running pipeline takes retry and resync (Y-09).
    pub requests: bool,
    /// Dispatch can be held for a verifier (L-07).
    pub hold: bool,
    /// Heartbeats are written.
    pub heartbeat: bool,
}

/// What the core beside this world has.
pub const BUILT: Features = Features {
    listings: true,
    schema: true,
    quarantine: true,
    recreation: true,
    promotion: true,
    adoption: true,
    readers: true,
    requests: true,
    hold: true,
    heartbeat: true,
};
