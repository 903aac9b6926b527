//! What stands for a bag, and what it takes on the wire.

use gleaner_algorithms::Method;
use gleaner_algorithms::collectives::RoutineError;
use gleaner_algorithms::forecast::bytes_per_entry;

/// What entries take on the wire.
pub(super) struct Sizes {
    /// For densities 1/2, 1/4 and so on: bytes of an entry encoded exactly, and encoded by the method's coding.
    table: Vec<(f64, f64)>,
    /// Bytes of a dense value.
    pub dense: f64,
}

impl Sizes {
    /// Densities down to this power of 1/2 are measured.
    pub(super) const DEPTH: u32 = 16;

    pub(super) fn new(method: &Method) -> Result<Self, RoutineError> {
        let n = 1usize << 20;
        let bytes = |coded: &Method, depth: u32| bytes_per_entry(&coded.clone().k(n >> depth), n);
        let exact = Method::auto();
        let coded = exact.clone().coding(method.values());
        let table = (1..=Self::DEPTH).map(|depth| Ok((bytes(&exact, depth)?, bytes(&coded, depth)?)));
        Ok(Self { table: table.collect::<Result<_, RoutineError>>()?, dense: 4.0 })
    }

    /// Bytes of a sparse entry: its index, and its value if it was rounded or not.
    pub(super) fn entry(&self, density: f64, rounded: bool) -> f64 {
        let depth = (-density.max(1e-12).log2() - 1.0).clamp(0.0, f64::from(Self::DEPTH - 1));
        let (whole, rest) = (depth.floor() as usize, depth.fract());
        let at = |i: usize| {
            let (exact, coded) = self.table[i.min(self.table.len() - 1)];
            if rounded { coded } else { exact }
        };
        at(whole) * (1.0 - rest) + at(whole + 1) * rest
    }

    /// Bytes of an index alone.
    pub(super) fn index(&self, density: f64) -> f64 {
        self.entry(density, false) - self.dense
    }

    /// Bytes of a value alone.
    pub(super) fn value(&self, density: f64, rounded: bool) -> f64 {
        self.entry(density, rounded) - self.index(density)
    }
}

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Form {
    /// The worker's own accumulator, with so many sums laid over it.
    Own,
    Sparse,
    /// All values; `switched` if it became so because many entries came together.
    Dense {
        switched: bool,
    },
    Aligned,
    Proposal,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub form: Form,
    /// Entries, or sums laid over an accumulator.
    pub entries: f32,
    /// How many of them all workers chose.
    pub common: f32,
    pub rounded: bool,
    /// One of several pieces that have nothing in common.
    pub piece: bool,
    /// Numbers of a note.
    pub note: u32,
    /// Whether it came or was sent as it is now: then it is not encoded again.
    pub is_encoded: bool,
}

impl Held {
    pub(super) fn new(form: Form, entries: f64, common: f64) -> Self {
        let (entries, common) = (entries as f32, common as f32);
        Self { form, entries, common, rounded: false, piece: false, note: 0, is_encoded: false }
    }

    pub(super) fn entries(&self) -> f64 {
        f64::from(self.entries)
    }

    /// What sparse entries become. As bags turn dense: an entry takes twice what a value does.
    pub(super) fn of_sparse(entries: f64, common: f64, len: f64) -> Self {
        let form = if 2.0 * entries > len { Form::Dense { switched: true } } else { Form::Sparse };
        Self::new(form, entries, common)
    }
}
