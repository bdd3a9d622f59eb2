//! Scenarios as text: `>` is an input, `<` an effect, `#` a comment. Read them to learn the
//! protocol; a change of behaviour shows as a difference.

mod begin;
mod copies;
mod failures;
mod found;
mod holes;
mod identity;
mod idle;
mod memory;
mod play;
mod promotion;
mod recreation;
mod reopen;
mod retries;
mod stage;
mod startup;
mod stop;
mod stream;
