//! The one source of decisions of a world: a seeded generator.

/// Same seed, same throws.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice that repeat themselves with the seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits (splitmix64).
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `0..end`; 0 if `end` is 0.
    pub const fn below(&mut self, end: u64) -> u64 {
        let throw = self.next();
        if end == 0 { 0 } else { throw % end }
    }

    /// A number in `from..=to`.
    pub const fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// True in `percent` of 100 throws.
    pub const fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of the choices, if there is any.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> Option<&'a T> {
        let index = usize::try_from(self.below(choices.len() as u64)).unwrap_or(0);
        choices.get(index)
    }
}
