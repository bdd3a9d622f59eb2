//! Scenarios as text: `>` is an input, `<` an effect, `#` a comment. Read them to learn the
//! protocol; a change of behaviour shows as a difference.

mod copies;
mod failures;
mod found;
mod holes;
mod identity;
mod idle;
mod reopen;
mod stage;
mod startup;
mod stop;
mod stream;
