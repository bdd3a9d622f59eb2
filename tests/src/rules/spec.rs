//! Reads `docs/spec.md` for the identifiers of invariants (`X-I1`) and fault points (`K-F6`).
//!
//! The specification defines one by writing it in bold, alone or as a range, or in the first cell of
//! a table row. Everywhere else it is a reference, and must name one that is defined.

use std::collections::BTreeSet;
use std::fmt;

/// An invariant or a fault point.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    group: String,
    kind: Kind,
    number: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Invariant,
    Fault,
}

impl Kind {
    const fn of(letter: char) -> Option<Self> {
        match letter {
            'I' => Some(Self::Invariant),
            'F' => Some(Self::Fault),
            _ => None,
        }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Invariant => 'I',
            Kind::Fault => 'F',
        };
        f.pad(&format!("{}-{kind}{}", self.group, self.number))
    }
}

impl Id {
    /// The identifier that is the whole text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (id, rest) = Self::read(text)?;
        rest.is_empty().then_some(id)
    }

    /// The identifier at the start of a text, and what follows it.
    fn read(text: &str) -> Option<(Self, &str)> {
        let (group, rest) = text.split_once('-')?;
        let named = (1..=2).contains(&group.len()) && group.bytes().all(|b| b.is_ascii_uppercase());
        let kind = Kind::of(rest.chars().next()?)?;
        let (number, rest) = read_number(&rest[1..])?;
        named.then(|| (Self { group: group.to_owned(), kind, number }, rest))
    }

    /// The last number of a range: what follows its first identifier is `..F5`, `..U-F7` or `..5`.
    fn read_range_end<'a>(&self, text: &'a str) -> Option<(u32, &'a str)> {
        let rest = text.strip_prefix("..")?;
        let rest = rest.strip_prefix(&format!("{}-", self.group)).unwrap_or(rest);
        let rest = rest.strip_prefix(['I', 'F']).unwrap_or(rest);
        read_number(rest)
    }
}

fn read_number(text: &str) -> Option<(u32, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    Some((text[..digits].parse().ok()?, &text[digits..]))
}

/// All identifiers of a text, ranges written out, in the order in which they stand there.
#[must_use]
pub fn mentions(text: &str) -> Vec<Id> {
    let mut found = Vec::new();
    let mut rest = text;
    let mut inside_word = false;
    while let Some(first) = rest.chars().next() {
        if !inside_word && let Some((id, after)) = Id::read(rest) {
            let (last, after) = id.read_range_end(after).unwrap_or((id.number, after));
            found.extend((id.number..=last).map(|number| Id { number, ..id.clone() }));
            rest = after;
            inside_word = true;
            continue;
        }
        inside_word = first.is_alphanumeric() || first == '-' || first == '_';
        rest = &rest[first.len_utf8()..];
    }
    found
}

/// The identifiers that the specification defines.
///
/// # Errors
/// A sentence for each one that is defined twice, or that is mentioned and defined nowhere.
pub fn definitions(spec: &str) -> Result<BTreeSet<Id>, Vec<String>> {
    let mut defined = BTreeSet::new();
    let mut wrong = Vec::new();
    for line in spec.lines() {
        for id in mentions(&defining_text(line)) {
            if !defined.insert(id.clone()) {
                wrong.push(format!("{id} is defined twice"));
            }
        }
    }
    let mentioned: BTreeSet<Id> = mentions(spec).into_iter().collect();
    wrong.extend(mentioned.difference(&defined).map(|id| format!("{id} is defined nowhere")));
    if wrong.is_empty() { Ok(defined) } else { Err(wrong) }
}

/// The parts of a line in which a mention is a definition.
fn defining_text(line: &str) -> String {
    if let Some(row) = line.strip_prefix('|') {
        return row.split('|').next().unwrap_or_default().to_owned();
    }
    // Between the marks of bold text: every second part.
    let bold: Vec<&str> = line.split("**").skip(1).step_by(2).collect();
    bold.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(ids: impl IntoIterator<Item = Id>) -> Vec<String> {
        ids.into_iter().map(|id| id.to_string()).collect()
    }

    #[test]
    fn every_way_to_write_an_identifier_is_understood() {
        let cases = [
            ("* **X-I1** text", "X-I1"),
            ("Faults: **R-F1..F5** crash; **R-F6** torn", "R-F1 R-F2 R-F3 R-F4 R-F5 R-F6"),
            ("U-F1..U-F3, C-F10..12", "U-F1 U-F2 U-F3 C-F10 C-F11 C-F12"),
            ("(DS-I2), \"C-F10\";W-F5", "DS-I2 C-F10 W-F5"),
            ("H-04, K-F, as R-F; XYZ-I1, aX-I1, UTF-F", ""),
        ];
        for (text, expected) in cases {
            assert_eq!(texts(mentions(text)).join(" "), expected, "{text}");
        }
    }

    #[test]
    fn bold_text_and_first_cells_define() {
        let spec = "* **X-I1** see X-F1\n| X-F1, X-F2 | after X-I1 |\n| **X-F3** | |\n";
        assert_eq!(
            definitions(spec).map(texts),
            Ok(["X-I1", "X-F1", "X-F2", "X-F3"].map(str::to_owned).to_vec())
        );
    }

    #[test]
    fn a_second_definition_and_a_dangling_reference_are_named() {
        let spec = "**X-I1** like X-I2\n**X-I1**\n";
        let wrong =
            ["X-I1 is defined twice", "X-I2 is defined nowhere"].map(str::to_owned).to_vec();
        assert_eq!(definitions(spec), Err(wrong));
    }

    // The list is a snapshot: whoever adds a rule to the specification sees that it counts.
    #[test]
    fn the_identifiers_of_the_specification() {
        let ids = definitions(crate::rules::SPEC).unwrap();
        let mut lines = Vec::<String>::new();
        for id in ids {
            let start = format!("{}-{:?}:", id.group, id.kind);
            match lines.last_mut().filter(|line| line.starts_with(&start)) {
                Some(line) => *line += &format!(" {}", id.number),
                None => lines.push(format!("{start} {}", id.number)),
            }
        }
        insta::assert_snapshot!(lines.join("\n"));
    }
}
