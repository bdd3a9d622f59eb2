//! Connection texts: URLs and `key=value` strings, as pairs of libpq's parameter names.
//!
//! Owns the two grammars. Must never know defaults, the environment or what a parameter means.

use crate::error::SourceError;

/// Parameters that are understood, or taken and left without effect.
pub(crate) const KNOWN: &[&str] = &[
    "host",
    "hostaddr",
    "port",
    "user",
    "password",
    "passfile",
    "dbname",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "channel_binding",
    "connect_timeout",
    "options",
    "application_name",
    "fallback_application_name",
    "client_encoding",
    "target_session_attrs",
    "gssencmode",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
];

/// Reads either form. An empty text has no parameters.
pub(crate) fn parameters(text: &str) -> Result<Vec<(String, String)>, SourceError> {
    let text = text.trim();
    let pairs =
        match text.strip_prefix("postgres://").or_else(|| text.strip_prefix("postgresql://")) {
            Some(rest) => url(rest)?,
            None => key_value(text)?,
        };
    for (name, _) in &pairs {
        known(name)?;
    }
    Ok(pairs)
}

fn known(name: &str) -> Result<(), SourceError> {
    if KNOWN.contains(&name) {
        return Ok(());
    }
    let nearest = KNOWN
        .iter()
        .map(|candidate| (edits(name, candidate), *candidate))
        .min()
        .filter(|(distance, candidate)| *distance <= candidate.len() / 3);
    let advice = nearest.map(|(_, name)| format!(", did you mean {name}?")).unwrap_or_default();
    Err(SourceError::Setting {
        setting: "source",
        expected: nearest.map_or("a parameter of libpq", |(_, name)| name).to_owned(),
        found: name.to_owned(),
        message: format!("unknown connection parameter {name}{advice}"),
    })
}

/// What is wrong with the form of the text. The text itself may hold a password and is not shown.
fn malformed(found: &str) -> SourceError {
    SourceError::Setting {
        setting: "source",
        expected: "postgres://user@host:port/database or host=.. user=.. dbname=..".to_owned(),
        found: found.to_owned(),
        message: format!("the connection text is malformed: {found}"),
    }
}

fn url(rest: &str) -> Result<Vec<(String, String)>, SourceError> {
    let mut pairs = Vec::new();
    let mut push = |name: &str, value: &str| -> Result<(), SourceError> {
        if !value.is_empty() {
            pairs.push((name.to_owned(), decode(value)?));
        }
        Ok(())
    };
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, database) = place.split_once('/').unwrap_or((place, ""));
    let address = match authority.rsplit_once('@') {
        Some((who, address)) => {
            let (user, password) = who.split_once(':').unwrap_or((who, ""));
            push("user", user)?;
            push("password", password)?;
            address
        }
        None => authority,
    };
    let (host, port) = host_and_port(address)?;
    push("host", host)?;
    push("port", port)?;
    push("dbname", database)?;
    for part in query.split('&').filter(|part| !part.is_empty()) {
        let Some((name, value)) = part.split_once('=') else {
            return Err(malformed("a parameter without value"));
        };
        match (decode(name)?.as_str(), value) {
            // JDBC's way to ask for TLS, which libpq takes in URLs too.
            ("ssl", "true") => push("sslmode", "require")?,
            (name, value) => push(name, value)?,
        }
    }
    Ok(pairs)
}

fn host_and_port(address: &str) -> Result<(&str, &str), SourceError> {
    if let Some(rest) = address.strip_prefix('[') {
        let Some((host, port)) = rest.split_once(']') else {
            return Err(malformed("an address without closing bracket"));
        };
        return match port.strip_prefix(':') {
            Some(port) => Ok((host, port)),
            None if port.is_empty() => Ok((host, "")),
            None => Err(malformed("text after the address in brackets")),
        };
    }
    Ok(address.split_once(':').unwrap_or((address, "")))
}

/// Undoes percent-encoding.
fn decode(text: &str) -> Result<String, SourceError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
        match (digit(), digit()) {
            (Some(high), Some(low)) if high + low > 0 => {
                bytes.extend(u8::try_from(high * 16 + low));
            }
            _ => return Err(malformed("a percent sign without two hexadecimal digits")),
        }
    }
    String::from_utf8(bytes).map_err(|_| malformed("percent-encoded bytes that are not UTF-8"))
}

/// `name = value` pairs. A value with blanks stands in single quotes; a backslash escapes.
fn key_value(text: &str) -> Result<Vec<(String, String)>, SourceError> {
    let mut pairs = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let Some((name, after)) = rest.split_once('=') else {
            return Err(malformed("a name without = and value"));
        };
        let name = name.trim_end();
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Err(malformed("a name without = and value"));
        }
        let (value, after) = value(after.trim_start())?;
        pairs.push((name.to_owned(), value));
        rest = after.trim_start();
    }
    pairs.retain(|(_, value)| !value.is_empty());
    Ok(pairs)
}

fn value(text: &str) -> Result<(String, &str), SourceError> {
    let (quoted, body) = match text.strip_prefix('\'') {
        Some(body) => (true, body),
        None => (false, text),
    };
    let mut value = String::new();
    let mut chars = body.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '\\' => value.extend(chars.next().map(|(_, escaped)| escaped)),
            '\'' if quoted => return Ok((value, body.get(at + 1..).unwrap_or_default())),
            blank if !quoted && blank.is_whitespace() => {
                return Ok((value, body.get(at..).unwrap_or_default()));
            }
            other => value.push(other),
        }
    }
    if quoted { Err(malformed("a value without closing quote")) } else { Ok((value, "")) }
}

/// Levenshtein distance in bytes.
fn edits(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cell, y) in row.iter_mut().skip(1).zip(b.bytes()) {
            let substitute = diagonal + usize::from(x != y);
            diagonal = *cell;
            *cell = substitute.min(left + 1).min(diagonal + 1);
            left = *cell;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> String {
        let pairs = parameters(text).unwrap();
        pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn both_forms_are_read() {
        let cases = [
            ("", ""),
            ("postgres://", ""),
            ("postgresql://h", "host=h"),
            ("postgres://u:p@h:1/d", "user=u password=p host=h port=1 dbname=d"),
            ("postgres://u@/d?host=/run/pg", "user=u dbname=d host=/run/pg"),
            ("postgres://%2Frun%2Fpg/d", "host=/run/pg dbname=d"),
            ("postgres://u:a%40b%3A%25@h/", "user=u password=a@b:% host=h"),
            ("postgres://u:p@ss@h", "user=u password=p@ss host=h"),
            ("postgres://[::1]:5433/d", "host=::1 port=5433 dbname=d"),
            (
                "postgres://h/d?sslmode=require&ssl=true",
                "host=h dbname=d sslmode=require sslmode=require",
            ),
            ("host=h port = 1 dbname='a b'", "host=h port=1 dbname=a b"),
            (r"password='it\'s' user=a\ b host=''", "password=it's user=a b"),
        ];
        for (text, expected) in cases {
            assert_eq!(read(text), expected, "{text}");
        }
    }

    #[test]
    fn malformed_texts_are_refused_without_showing_them() {
        let texts = [
            "postgres://u:secret@[::1",
            "postgres://u:secret@[::1]x",
            "postgres://u:secret%4@h",
            "postgres://u:secret%00@h",
            "postgres://u:secret%FF@h",
            "postgres://u:secret@h?sslmode",
            "password=secret host",
            "password='secret",
            "mysecret",
            "= secret",
        ];
        for text in texts {
            let error = parameters(text).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    // Z-01
    #[test]
    fn an_unknown_parameter_names_the_nearest() {
        let error = parameters("postgres://h?sslmod=require").unwrap_err().to_string();
        assert_eq!(error, "unknown connection parameter sslmod, did you mean sslmode?");
        let error = parameters("colour=red").unwrap_err().to_string();
        assert_eq!(error, "unknown connection parameter colour");
    }

    #[test]
    fn edits_are_counted() {
        for (a, b, distance) in [("", "", 0), ("a", "", 1), ("", "ab", 2), ("kitten", "sitting", 3)]
        {
            assert_eq!(edits(a, b), distance);
        }
    }
}
