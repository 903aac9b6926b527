//! Choosing entries by magnitude.
