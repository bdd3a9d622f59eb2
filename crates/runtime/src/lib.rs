//! walferry as a library: copies every table of a publication and then every change to it into a
//! [`Destination`], and keeps going.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use walferry::destinations::SqliteDestination;
//!
//! let source = walferry::source_from_env("postgres://app@localhost/app")?;
//! let pipeline = walferry::Pipeline::builder()
//!     .source(source)
//!     .publication("app")
//!     .destination(SqliteDestination::new("app.sqlite"))
//!     .state(walferry::state::file("./state"))
//!     .start()
//!     .await?;
//! println!("{}", pipeline.handle().status().view.lifecycle);
//! let outcome = pipeline.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! This crate owns the one event loop, the clock and the tasks that do the core's work. It holds no
//! rule about data: every decision is made by [`walferry_core`].

mod builder;
mod clock;
mod control;
mod copies;
mod destination;
mod driver;
mod offline;
mod ops;
mod saves;
mod streams;
mod work;

pub use builder::{Builder, Pipeline, StartError, source_from_env};
pub use control::{Handle, Status};
pub use offline::{RequestError, request_tables};
pub use walferry_core as core;
pub use walferry_destinations as destinations;
pub use walferry_destinations::{Destination, DestinationError};
pub use walferry_pg_source::SourceConfig;

/// Where a pipeline keeps its record.
pub mod state {
    use std::path::PathBuf;

    pub use walferry_store::{FileStore, StoreUrl, StoreUrlError};

    /// The `file:` store in a directory, which is created if its parent exists.
    #[must_use]
    pub fn file(dir: impl Into<PathBuf>) -> FileStore {
        FileStore::open(dir)
    }
}
