//! The source against real servers.

mod connect;
mod copy;
mod slots;
mod stream;
mod support;
