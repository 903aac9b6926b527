//! Gleaner: data-parallel training that exchanges the entries that matter.
