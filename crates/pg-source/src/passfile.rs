//! The password file of libpq: `host:port:database:user:password` a line.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// What the file said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// The password of the first line that matches.
    Found(String),
    /// There is no file, or no line of it matches.
    Nothing,
    /// The file was not read, and why.
    Ignored(String),
}

/// Whom a password is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Login<'a> {
    pub(crate) host: &'a str,
    pub(crate) port: u16,
    pub(crate) database: &'a str,
    pub(crate) user: &'a str,
}

/// Looks in the file at `path`. As libpq does, a file that others may read is not trusted.
pub(crate) fn look_up(path: &Path, login: Login<'_>) -> Lookup {
    let Ok(metadata) = fs::metadata(path) else { return Lookup::Nothing };
    let shown = path.display();
    if !metadata.is_file() {
        return Lookup::Ignored(format!("password file {shown} is not a plain file"));
    }
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Lookup::Ignored(format!(
            "password file {shown} has mode {mode:04o}, expected 0600 or less"
        ));
    }
    match fs::read_to_string(path) {
        Ok(text) => search(&text, login).map_or(Lookup::Nothing, Lookup::Found),
        Err(error) => Lookup::Ignored(format!("password file {shown} cannot be read: {error}")),
    }
}

fn search(text: &str, login: Login<'_>) -> Option<String> {
    let port = login.port.to_string();
    let wanted = [login.host, &port, login.database, login.user];
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let mut rest = line;
        for value in wanted {
            let (field, after) = field(rest)?;
            if rest.get(..rest.len() - after.len() - 1) != Some("*") && field != value {
                return None;
            }
            rest = after;
        }
        Some(field(&format!("{rest}:")).map_or_else(String::new, |(password, _)| password))
    })
}

/// The text up to the next colon that no backslash escapes, and what follows that colon.
fn field(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '\\' => value.extend(chars.next().map(|(_, escaped)| escaped)),
            ':' => return Some((value, text.get(at + 1..).unwrap_or_default())),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGIN: Login<'_> = Login { host: "h", port: 5432, database: "d", user: "u" };

    #[test]
    fn the_first_line_that_matches_counts() {
        let cases = [
            ("", None),
            ("# h:5432:d:u:no\nh:5432:d:u:yes", Some("yes")),
            ("x:5432:d:u:no\n*:*:*:*:any", Some("any")),
            ("h:5433:d:u:no", None),
            ("h:5432:d", None),
            (r"h:5432:d:u:a\:b\\c", Some(r"a:b\c")),
            (r"\*:5432:d:u:no", None),
            ("h:5432:d:u:", Some("")),
        ];
        for (text, expected) in cases {
            assert_eq!(search(text, LOGIN).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn a_file_that_others_may_read_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pass");
        assert_eq!(look_up(&path, LOGIN), Lookup::Nothing);
        fs::write(&path, "*:*:*:*:p\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(look_up(&path, LOGIN), Lookup::Ignored(why) if why.contains("0640")));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(look_up(&path, LOGIN), Lookup::Found("p".to_owned()));
        assert!(matches!(look_up(dir.path(), LOGIN), Lookup::Ignored(_)));
    }
}
