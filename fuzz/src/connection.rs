//! Connection strings: URLs and `key=value` texts that a person types.

use walferry_pg_source::SourceConfig;

const SECRET: &str = "zQ9secret";

/// Any text, alone and behind a password that must not be shown.
pub fn connection(data: &[u8]) {
    let Ok(text) = core::str::from_utf8(data) else { return };
    // Certificates and password files are read; a device would never end.
    if text.contains("/dev") || text.contains("/proc") || text.contains("zQ9") {
        return;
    }
    let env = |name: &str| (name == "USER").then(|| "somebody".to_owned());
    let shown = |text: &str| match SourceConfig::parse(text, &env) {
        Ok(config) => format!("{config:?} {} {}", config.describe(), config.database()),
        Err(fault) => format!("{fault:?} {fault}"),
    };
    drop(shown(text));
    let with_password = shown(&format!("password={SECRET} {text}"));
    assert!(!with_password.contains(SECRET), "the password is shown: {with_password}");
    for scheme in ["postgres", "postgresql"] {
        let with_password = shown(&format!("{scheme}://somebody:{SECRET}@{text}"));
        assert!(!with_password.contains(SECRET), "the password is shown: {with_password}");
    }
}
