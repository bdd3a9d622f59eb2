//! The only place that writes to standard output and standard error.

use std::io::{self, IsTerminal, Write};

use crate::error::{CliError, one_line};

/// Whether standard error is for a person.
pub(crate) fn is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Whether standard error may be coloured: a terminal that nobody has asked to be plain.
pub(crate) fn has_colours() -> bool {
    let asked_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    is_terminal() && !asked_plain && !dumb
}

/// Writes a result to standard output. A reader that went away is not an error.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Writes an error to standard error. If that fails there is nobody left to tell.
pub(crate) fn print_error(error: &CliError) {
    drop(io::stderr().lock().write_all(error_text(error, has_colours()).as_bytes()));
}

fn error_text(error: &CliError, colours: bool) -> String {
    let label = |word: &str, colour: &str| {
        if colours { format!("\u{1b}[1;{colour}m{word}:\u{1b}[0m") } else { format!("{word}:") }
    };
    let mut text = format!("{} {}\n", label("error", "31"), one_line(&error.what));
    if !error.why.is_empty() {
        text.push_str(&format!("{} {}\n", label("cause", "31"), one_line(&error.why)));
    }
    for hint in &error.hints {
        text.push_str(&format!("{} {}\n", label("hint", "36"), one_line(hint)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_one_line_for_each_part() {
        let error = CliError::usage("a\nb", "c\r\nerror: d").hint("e").hint("f\u{1b}[2J");
        assert_eq!(
            error_text(&error, false),
            "error: a b\ncause: c  error: d\nhint: e\nhint: f [2J\n"
        );
        let coloured = error_text(&error, true);
        assert!(coloured.starts_with("\u{1b}[1;31merror:\u{1b}[0m a b\n"), "{coloured}");
    }
}
