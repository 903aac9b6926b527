//! Which server has which entries of the parameters.

use std::ops::Range;

use crate::{Block, Layers, Partition};

/// Even contiguous cuts of the flat parameters over servers: their lengths differ by one entry at most. They depend on the number
/// of entries and of servers alone, so that servers that join or leave between two runs only cut again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shards {
    partition: Partition,
}

/// Entries of one unit that are on one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardPart {
    /// Which unit.
    pub unit: usize,
    /// Which server, counted from 0.
    pub server: u32,
    /// Which entries, as positions in the flat parameters; never none.
    pub range: Range<usize>,
}

impl Shards {
    /// Cuts this many entries for this many servers.
    ///
    /// # Errors
    /// More servers than entries, no servers, or shards too long for the indices of bags.
    pub fn new(entries: usize, servers: u32) -> Result<Self, ShardsError> {
        if servers == 0 {
            return Err(ShardsError::None);
        }
        if servers as usize > entries {
            return Err(ShardsError::Many { servers, entries });
        }
        if entries.div_ceil(servers as usize) >= u32::MAX as usize {
            return Err(ShardsError::Long { servers, entries });
        }
        Ok(Self { partition: Partition::even(entries, servers as usize) })
    }

    /// The number of servers.
    pub fn servers(&self) -> u32 {
        self.partition.blocks() as u32
    }

    /// The entries of a server, counted from 0.
    pub fn range(&self, server: u32) -> Range<usize> {
        self.partition.range(Block(server))
    }

    /// The parts that units have on servers, in the order of the flat parameters. Units are the layers of as many entries as were
    /// cut; one without entries has no part.
    pub fn parts(&self, units: &Layers) -> Vec<ShardPart> {
        let mut parts = Vec::new();
        let mut server = 0;
        for (unit, unit_range) in units.ranges().enumerate() {
            let mut start = unit_range.start;
            while start < unit_range.end && server < self.servers() {
                let end = self.range(server).end;
                let range = start..unit_range.end.min(end);
                if !range.is_empty() {
                    start = range.end;
                    parts.push(ShardPart { unit, server, range });
                }
                if start == end {
                    server += 1;
                }
            }
        }
        parts
    }
}

/// Parameters that cannot be cut.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ShardsError {
    /// No servers.
    #[error(
        "0 servers; expected at least one: give a number of servers, or choose a synchrony that needs none"
    )]
    None,
    /// More servers than entries.
    #[error(
        "{servers} servers for a model of {entries} parameters; expected at most one server for each parameter: start fewer servers"
    )]
    Many {
        /// How many servers.
        servers: u32,
        /// How many entries.
        entries: usize,
    },
    /// Indices inside a shard are 32 bits wide.
    #[error(
        "{servers} servers for a model of {entries} parameters; expected fewer than {most} parameters on each: start more servers",
        most = u32::MAX
    )]
    Long {
        /// How many servers.
        servers: u32,
        /// How many entries.
        entries: usize,
    },
}

crate::sentence::debug_as_sentence!(ShardsError);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn there_is_an_entry_for_every_server() {
        assert_eq!(Shards::new(3, 0).unwrap_err(), ShardsError::None);
        let error = Shards::new(3, 4).unwrap_err().to_string();
        assert!(error.starts_with("4 servers for a model of 3 parameters; expected at most"), "{error}");
        assert!(Shards::new(usize::MAX, 4).unwrap_err().to_string().contains("start more servers"));
        assert!(Shards::new(0, 1).is_err());
    }

    #[test]
    fn parts_by_hand() {
        let shards = Shards::new(10, 3).unwrap();
        let parts = shards.parts(&Layers::of([2, 0, 5, 3]));
        let expected = [(0, 0, 0..2), (2, 0, 2..4), (2, 1, 4..7), (3, 2, 7..10)];
        assert_eq!(parts, expected.map(|(unit, server, range)| ShardPart { unit, server, range }));
    }

    proptest! {
        #[test]
        fn every_entry_is_in_one_part(lengths in prop::collection::vec(0usize..40, 1..12), servers in 1u32..20) {
            let units = Layers::of(lengths);
            let shards = Shards::new(units.entries(), servers);
            prop_assert_eq!(shards.is_err(), units.entries() < servers as usize);
            let Ok(shards) = shards else { return Ok(()) };
            let parts = shards.parts(&units);
            let ranges: Vec<_> = units.ranges().collect();
            let mut at = 0;
            for part in &parts {
                prop_assert_eq!(part.range.start, at);
                at = part.range.end;
                prop_assert!(!part.range.is_empty());
                for range in [ranges[part.unit].clone(), shards.range(part.server)] {
                    prop_assert!(range.start <= part.range.start && part.range.end <= range.end);
                }
            }
            prop_assert_eq!(at, units.entries());
            let lengths = || (0..servers).map(|server| shards.range(server).len());
            prop_assert!(lengths().max().unwrap() - lengths().min().unwrap() <= 1);
        }
    }
}
