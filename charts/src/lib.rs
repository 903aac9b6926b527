//! Charts as SVG, in one style: readable in black and white, with one legend for all that a page shows.
//!
//! A [`Page`] has a heading, words below it and a legend. On it stand panels, drawn by the charts of `plotters`: [`Lines`] over two axes,
//! [`Rows`] of bars, marks and spans of time, and [`Arrows`] between places.

mod arrows;
mod axis;
mod lines;
mod look;
mod page;
mod rows;

pub use arrows::{Arrow, Arrows, Head, Shaft};
pub use axis::Axis;
pub use lines::{Line, Lines};
pub use look::{Fill, Look, Marker};
pub use page::{Area, DrawError, Key, Page, width};
pub use rows::{Row, Rows};
