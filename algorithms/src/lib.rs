//! What to send and what to keep. Pure: no sockets, no clock, no async, no threads of its own.

pub mod select;
