//! Rules of one group each, driven through the two enums of the boundary.

mod fence;
mod health;
mod hold;
mod listing;
mod quarantine;
mod requests;
mod rig;
