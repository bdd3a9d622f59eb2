//! What the source sends, as values: frames, output plugin messages, rows and copied rows.
//!
//! Pure functions of bytes. Everything is bounds-checked, nothing is allocated for a value, and
//! each error says where it was found and what stood there (A-06, A-07, A-I3).
//!
//! | module | owns |
//! |---|---|
//! | `frames` | the frame header, and the bodies of a replication stream's CopyData |
//! | `pgoutput` | messages of the output plugin, one by one |
//! | `tuple` | rows: views over the bytes that an event holds |
//! | `decoder` | the whole stream as events |
//! | `order`, `announced` | order and ordinals of its transactions; its relations |
//! | `copy`, `escape` | rows of a table copy |
//! | `ddl` | the content of schema messages |
//! | `encode` | the other direction, for tests and scripted servers |
//!
//! It must never know sockets, destinations, which tables are wanted, or what a value means.

mod announced;
mod copy;
mod cursor;
mod ddl;
mod decoder;
pub mod encode;
mod error;
mod escape;
mod frames;
mod order;
mod pgoutput;
mod tuple;

pub use copy::{CopyCell, CopyCells, CopyRow, CopyRows, CopyRun, count_copy_rows};
pub use ddl::{DDL_BYTES_MAX, parse_ddl};
pub use decoder::{Limits, Progress, StreamDecoder};
pub use error::{DecodeClass, DecodeError, DecodeReason};
pub use escape::unescape_into;
pub use frames::{
    COPY_DATA, Frame, Frames, Replication, Stop, complete_frames, frame_size, next_frame,
    standby_status,
};
pub use pgoutput::Message;
pub use tuple::{Cell, Cells, OldKind, RowView, Tuple};
