//! The actor system of one worker, the session that a trainer holds, and the launcher.

pub mod launcher;
pub mod report;
