//! From the text of a value to what SQLite stores.

use rusqlite::Statement;
use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use walferry_core::wire::DecodeError;

use crate::values::{self, Class};

/// Why a row could not be written.
#[derive(Debug)]
pub(super) enum Trouble {
    /// SQLite refused.
    Sql(rusqlite::Error),
    /// Its bytes are not a row of this table.
    Malformed(DecodeError),
    /// A column whose text is not what its type prints.
    NotHex { column: usize },
    /// A column in binary form, which was never asked for.
    Binary { column: usize },
    /// An insert without the value of a column.
    Missing { column: usize },
    /// An old row that does not name the row: an update or delete without key or without all
    /// columns.
    NoOld,
    /// Updates and deletes need an identity that the table has not.
    NoIdentity,
    /// No row has the old key or the old columns.
    NotFound,
}

impl From<rusqlite::Error> for Trouble {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<DecodeError> for Trouble {
    fn from(error: DecodeError) -> Self {
        Self::Malformed(error)
    }
}

/// Binds NULL to the parameter at `place`, from 1.
#[inline]
pub(super) fn null(statement: &mut Statement<'_>, place: usize) -> rusqlite::Result<()> {
    statement.raw_bind_parameter(place, ToSqlOutput::Owned(Value::Null))
}

/// Binds the value that `text` stands for. Text that its class does not know is bound as it is:
/// nothing is lost and nothing guessed.
#[inline]
pub(super) fn value(
    statement: &mut Statement<'_>,
    place: usize,
    (column, class): (usize, Class),
    text: &[u8],
    scratch: &mut Vec<u8>,
) -> Result<(), Trouble> {
    let plain = ValueRef::Text(text);
    let bound = match class {
        Class::Integer => values::integer(text).map_or(plain, ValueRef::Integer),
        Class::Bool => values::boolean(text).map_or(plain, |bit| ValueRef::Integer(bit.into())),
        Class::Float => float(text),
        Class::Bytes => {
            scratch.clear();
            if !values::bytes(text, scratch) {
                return Err(Trouble::NotHex { column });
            }
            ValueRef::Blob(scratch)
        }
        Class::Numeric | Class::Json | Class::Text => plain,
    };
    Ok(statement.raw_bind_parameter(place, ToSqlOutput::Borrowed(bound))?)
}

/// SQLite stores NaN as NULL and negative zero as zero, and it has no text for infinity.
fn float(text: &[u8]) -> ValueRef<'_> {
    let number = str::from_utf8(text).ok().and_then(|text| text.parse::<f64>().ok());
    match number {
        _ if text == b"-0" => ValueRef::Blob(text),
        Some(number) if number.is_finite() => ValueRef::Real(number),
        Some(_) | None => ValueRef::Text(text),
    }
}
