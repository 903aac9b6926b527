//! What was measured, as one page to look at and as numbers for scripts.
//!
//! [`read()`] takes in the directories of runs, [`figures()`] puts their numbers together,
//! [`summary()`] adds what surrounds them and is what scripts get, and [`page()`] writes a
//! single HTML file: pictures, the tables under them, and the commands to measure again.

mod exchange;
pub mod figure;
mod fit;
pub mod page;
mod plot;
pub mod read;
pub mod results;
mod sample;
pub mod summary;
mod training;

pub use figure::{Figure, figures};
pub use page::page;
pub use plot::gallery;
pub use read::{Run, read};
pub use summary::{Summary, summary};

#[cfg(test)]
mod tests;
