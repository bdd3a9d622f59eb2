//! Numbers as people read them.

use core::time::Duration;

/// `1,234,567`.
pub(crate) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1.5 MiB`.
pub(crate) fn bytes(value: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if value < 1024 {
        return format!("{value} B");
    }
    let mut tenths = u128::from(value) * 10 / 1024;
    for unit in UNITS {
        if tenths < 10_240 {
            return format!("{}.{} {unit}", tenths / 10, tenths % 10);
        }
        tenths /= 1024;
    }
    format!("{} EiB", tenths / 10)
}

/// `0.3 s`, `12 s`, `3 min 5 s`, `2 h 3 min`.
pub(crate) fn time(value: Duration) -> String {
    let seconds = value.as_secs();
    match seconds {
        0..10 => format!("{seconds}.{} s", value.subsec_millis() / 100),
        10..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600.. => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
    }
}

/// What happens per second, from a counter that is read now and then.
#[derive(Debug, Default)]
pub(crate) struct Rate {
    value: u64,
    per_second: f64,
}

impl Rate {
    /// Reads the counter `elapsed` after the last time; older readings count less and less.
    pub(crate) fn read(&mut self, value: u64, elapsed: Duration) {
        let seconds = elapsed.as_secs_f64();
        if seconds <= 0.0 {
            return;
        }
        let now = value.saturating_sub(self.value) as f64 / seconds;
        // Half of the weight is younger than two seconds.
        let weight = 1.0 - 0.5_f64.powf(seconds / 2.0);
        self.per_second += (now - self.per_second) * weight;
        self.value = value;
    }

    /// The rate as a whole number.
    pub(crate) fn per_second(&self) -> u64 {
        self.per_second.round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        for (value, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(value), text);
        }
        for (value, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (1 << 20, "1.0 MiB"),
            ((1 << 30) - 1, "1023.9 MiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(bytes(value), text);
        }
        for (millis, text) in [
            (0, "0.0 s"),
            (340, "0.3 s"),
            (12_900, "12 s"),
            (185_000, "3 min 5 s"),
            (7_380_000, "2 h 3 min"),
        ] {
            assert_eq!(time(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn a_rate_follows_its_counter() {
        let mut rate = Rate::default();
        let second = Duration::from_secs(1);
        for step in 1..=30 {
            rate.read(step * 500, second);
        }
        assert_eq!(rate.per_second(), 500);
        rate.read(99, Duration::ZERO);
        assert_eq!(rate.per_second(), 500);
        for _ in 0..60 {
            rate.read(15_000, second);
        }
        assert_eq!(rate.per_second(), 0);
    }
}
