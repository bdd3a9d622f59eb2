//! The parsers of names and positions (N-02, N-14): what one accepts, formatting gives back.

use walferry_core::ids::Attempt;
use walferry_core::lsn::Lsn;
use walferry_core::names;

/// A prefix and a name, split at the first line feed; both are positions, too.
pub fn names(data: &[u8]) {
    let Ok(text) = core::str::from_utf8(data) else { return };
    let (prefix, name) = text.split_once('\n').unwrap_or((text, text));
    for text in [prefix, name] {
        if let Ok(lsn) = text.parse::<Lsn>() {
            assert_eq!(lsn.to_string().parse(), Ok(lsn), "{text:?} (N-I2)");
        }
    }
    if !names::is_main_slot(prefix, name) {
        return;
    }
    assert_eq!(name.len(), prefix.len() + 25, "{name:?} (N-02)");
    if names::valid_prefix(prefix) {
        let copy = names::copy_slot(name, Attempt(u64::MAX));
        assert!(names::valid_slot(name) && names::valid_slot(&copy), "{name:?} {copy:?} (N-I1)");
        assert!(copy.starts_with(&names::copy_slot_prefix(name)));
    }
}
