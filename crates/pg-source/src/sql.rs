//! Names and texts as parts of SQL and of replication commands.

/// `text` as a quoted identifier.
pub(crate) fn ident(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// `text` as a literal. Sessions run with `standard_conforming_strings`, so that only the quote
/// itself has a meaning.
pub(crate) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_inside_are_doubled() {
        assert_eq!(ident("a\"b"), "\"a\"\"b\"");
        assert_eq!(literal("it's \\"), "'it''s \\'");
    }
}
