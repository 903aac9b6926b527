//! The parameters of a model as a trainer names them, and their groups.

use std::collections::HashMap;
use std::ops::Range;

use gleaner_algorithms::bag::Entries;
use gleaner_algorithms::{Element, Layers};

/// Named parameters in a fixed order, in one or more groups. A group is what DDP calls a bucket: it is
/// selected from, exchanged and merged by itself, as soon as all its parameters are ready.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) groups: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Parameter {
    pub(crate) name: String,
    pub(crate) len: usize,
    pub(crate) group: usize,
    /// Position of its first entry in its group.
    pub(crate) offset: usize,
    /// Whether its gradients are sparse already: it is alone in its group.
    pub(crate) is_sparse: bool,
    /// Whether it is too small to be selected from: its group is delivered whole.
    pub(crate) is_whole: bool,
}

impl Parameter {
    /// Of how many entries something may wait between two steps: of a sparse parameter everything is delivered.
    pub(crate) fn waiting(&self) -> usize {
        if self.is_sparse { 0 } else { self.len }
    }

    /// Whether the method chooses from it.
    pub(crate) fn is_selected_from(&self) -> bool {
        !(self.is_sparse || self.is_whole)
    }

    /// Refuses another number of entries.
    pub(crate) fn expect(&self, found: usize) -> Result<(), LayoutError> {
        if found == self.len {
            return Ok(());
        }
        Err(LayoutError::Length { name: self.name.clone(), expected: self.len, found })
    }

    /// Refuses entries whose indices do not ascend strictly or are not below the number of entries.
    pub(crate) fn expect_entries<T: Element>(&self, entries: &Entries<T>) -> Result<(), LayoutError> {
        let (name, len) = (|| self.name.clone(), self.len);
        let Entries { indices, values } = entries;
        if indices.len() != values.len() {
            return Err(LayoutError::Uneven { name: name(), indices: indices.len(), values: values.len() });
        }
        if let Some(pair) = indices.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(LayoutError::Unsorted { name: name(), before: pair[0], index: pair[1] });
        }
        match indices.last() {
            Some(&index) if index as usize >= len => Err(LayoutError::Beyond { name: name(), index, len }),
            _ => Ok(()),
        }
    }
}

/// A call that does not fit the layout.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Two parameters of one name.
    #[error("the layout has two parameters named '{0}'; every parameter needs a name of its own")]
    Twice(String),
    /// No such parameter.
    #[error("the layout has no parameter named '{0}'")]
    Unknown(String),
    /// A gradient of another length.
    #[error("the gradient of '{name}' has {found} entries; the layout says {expected}")]
    Length {
        /// The parameter.
        name: String,
        /// Entries in the layout.
        expected: usize,
        /// Entries given.
        found: usize,
    },
    /// Other than one value for each index.
    #[error("the sparse gradient of '{name}' has {indices} indices and {values} values; expected as many")]
    Uneven {
        /// The parameter.
        name: String,
        /// Indices given.
        indices: usize,
        /// Values given.
        values: usize,
    },
    /// Indices out of order.
    #[error(
        "the sparse gradient of '{name}' has index {index} after {before}; expected indices that ascend, each once: add up \
         what has one index"
    )]
    Unsorted {
        /// The parameter.
        name: String,
        /// The index before.
        before: u32,
        /// An index that is not above.
        index: u32,
    },
    /// An index that is out of range.
    #[error("the sparse gradient of '{name}' has index {index}; expected indices below {len}")]
    Beyond {
        /// The parameter.
        name: String,
        /// The last index.
        index: u32,
        /// Entries in the layout.
        len: usize,
    },
    /// More entries than indices can count.
    #[error(
        "the sparse gradient of '{name}' has {n} entries; expected at most {most}, as indices are 32 bits wide: cut it into \
         several",
        most = u32::MAX
    )]
    LongForSparse {
        /// The parameter.
        name: String,
        /// Its entries, zeros included.
        n: usize,
    },
    /// Entries for a parameter that takes all values, or the other way round.
    #[error(
        "'{name}' is {}", kind(*.is_sparse)
    )]
    Kind {
        /// The parameter.
        name: String,
        /// What it is.
        is_sparse: bool,
    },
    /// A gradient given twice in a step.
    #[error("the gradient of '{0}' was given twice in one step; call wait() between steps")]
    Again(String),
    /// A regrouping to other parameters.
    #[error(
        "regroup() takes the same parameters in other groups: in the new layout '{name}' has {}, in the present one {}",
        entries(*.new), entries(*.present)
    )]
    Regrouped {
        /// The parameter.
        name: String,
        /// Entries in the new layout, if it is there.
        new: Option<usize>,
        /// Entries in the present layout, if it is there.
        present: Option<usize>,
    },
    /// A regrouping in the middle of a step.
    #[error("gradients can be regrouped between steps only: call wait() first")]
    MidStep,
    /// Gradients missing at the end of a step.
    #[error(
        "wait() was called before the gradients of {0} were ready; every parameter needs one in every step"
    )]
    Missing(String),
    /// More gradients than the wire can number.
    #[error(
        "a session numbers 267386879 groups of gradients and reducers, and these are more; make each once, before the training loop"
    )]
    TooManyGradients,
    /// More groups than the wire can number.
    #[error("the layout has {0} groups; at most 65535 are possible")]
    TooManyGroups(usize),
}

gleaner_transport::debug_as_sentence!(LayoutError);

fn kind(is_sparse: bool) -> &'static str {
    match is_sparse {
        true => "a sparse parameter of this layout: expected its gradient as entries, by ready_sparse()",
        false => "a dense parameter of this layout: expected all values of its gradient, by ready()",
    }
}

fn entries(entries: Option<usize>) -> String {
    entries.map_or("no place in the layout".into(), |entries| format!("{entries} entries"))
}

impl Layout {
    /// No parameters yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a parameter of `len` entries to the current group.
    #[must_use]
    pub fn parameter(mut self, name: impl Into<String>, len: usize) -> Self {
        self.groups = self.groups.max(1);
        let group = self.groups - 1;
        let before = self.parameters.last().filter(|p| p.group == group);
        let offset = before.map_or(0, |p| p.offset + p.len);
        let name = name.into();
        self.parameters.push(Parameter { name, len, group, offset, is_sparse: false, is_whole: false });
        self
    }

    /// Appends a parameter of `len` entries whose gradients are sparse already, such as an embedding, and handed over as entries
    /// ([`ready_sparse`](crate::Gradients::ready_sparse)). It is a group by itself, of which all entries that are given are
    /// delivered: no density, coding or selector is applied to it, and nothing of it waits.
    #[must_use]
    pub fn sparse_parameter(self, name: impl Into<String>, len: usize) -> Self {
        let mut layout = self.group().parameter(name, len);
        if let Some(last) = layout.parameters.last_mut() {
            last.is_sparse = true;
        }
        layout.group()
    }

    /// Starts a new group with the parameters that follow. A group without parameters does not count.
    #[must_use]
    pub fn group(mut self) -> Self {
        if self.parameters.iter().any(|p| p.group + 1 == self.groups) {
            self.groups += 1;
        }
        self
    }

    /// The number of entries over all parameters.
    pub fn entries(&self) -> usize {
        self.parameters.iter().map(|p| p.len).sum()
    }

    /// The groups that have parameters.
    pub(crate) fn group_count(&self) -> usize {
        self.parameters.last().map_or(0, |p| p.group + 1)
    }

    /// Whether a group is a sparse parameter.
    pub(crate) fn is_sparse(&self, group: usize) -> bool {
        self.parameters.iter().any(|p| p.group == group && p.is_sparse)
    }

    /// Whether a group is delivered whole since its parameters are small.
    pub(crate) fn is_whole(&self, group: usize) -> bool {
        self.parameters.iter().any(|p| p.group == group && p.is_whole)
    }

    /// The number of entries over all parameters that are selected from.
    pub(crate) fn selected_from(&self) -> usize {
        self.parameters.iter().filter(|p| p.is_selected_from()).map(|p| p.len).sum()
    }

    /// The same parameters, those with fewer entries than this in a group of their own behind all others. Sparse ones stay.
    pub(crate) fn apart(&self, below: usize) -> Self {
        let is_small = |p: &Parameter| !p.is_sparse && p.len < below;
        let (small, others): (Vec<&Parameter>, _) = self.parameters.iter().partition(|p| is_small(p));
        let mut layout = Self::new();
        for of_group in others.chunk_by(|a, b| a.group == b.group) {
            layout = of_group.iter().fold(layout.group(), |layout, p| match p.is_sparse {
                true => layout.sparse_parameter(p.name.clone(), p.len),
                false => layout.parameter(p.name.clone(), p.len),
            });
        }
        layout = layout.group();
        for p in small {
            layout = layout.parameter(p.name.clone(), p.len);
            layout.parameters.last_mut().into_iter().for_each(|last| last.is_whole = true);
        }
        layout
    }

    /// The parameters of a group, as the layers of its gradient.
    pub(crate) fn layers(&self, group: usize) -> Layers {
        Layers::of(self.parameters.iter().filter(|p| p.group == group).map(|p| p.len))
    }

    /// Where each group is among all entries.
    pub(crate) fn ranges(&self) -> Vec<Range<usize>> {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for p in &self.parameters {
            let end = ranges.last().map_or(0, |range| range.end);
            match ranges.get_mut(p.group) {
                Some(range) => range.end += p.len,
                None => ranges.push(end..end + p.len),
            }
        }
        ranges
    }

    /// One group by itself.
    pub(crate) fn only(&self, group: usize) -> Self {
        let parameters = self.parameters.iter().filter(|p| p.group == group);
        parameters.fold(Self::new(), |layout, p| match p.is_sparse {
            true => layout.sparse_parameter(p.name.clone(), p.len),
            false => layout.parameter(p.name.clone(), p.len),
        })
    }

    /// The names of a group's parameters.
    pub(crate) fn names(&self, group: usize) -> Vec<String> {
        self.parameters.iter().filter(|p| p.group == group).map(|p| p.name.clone()).collect()
    }

    /// Fails unless another layout has the same parameters of the same lengths. Names are unique in each.
    pub(crate) fn is_regrouped_by(&self, other: &Self) -> Result<(), LayoutError> {
        let of = |layout: &Self| -> HashMap<String, usize> {
            layout.parameters.iter().map(|p| (p.name.clone(), p.len)).collect()
        };
        let (present, new) = (of(self), of(other));
        for p in self.parameters.iter().chain(&other.parameters) {
            let (present, new) = (present.get(&p.name).copied(), new.get(&p.name).copied());
            if present != new {
                return Err(LayoutError::Regrouped { name: p.name.clone(), new, present });
            }
        }
        let is_sparse =
            |layout: &Self, name: &str| layout.parameters.iter().any(|p| p.name == name && p.is_sparse);
        let changed = self.parameters.iter().find(|p| p.is_sparse != is_sparse(other, &p.name));
        changed.map_or(Ok(()), |p| Err(LayoutError::Kind { name: p.name.clone(), is_sparse: p.is_sparse }))
    }

    pub(crate) fn by_name(&self) -> Result<HashMap<String, usize>, LayoutError> {
        if self.group_count() > usize::from(u16::MAX) {
            return Err(LayoutError::TooManyGroups(self.group_count()));
        }
        let mut positions = HashMap::new();
        for (position, parameter) in self.parameters.iter().enumerate() {
            if parameter.is_sparse && u32::try_from(parameter.len).is_err() {
                return Err(LayoutError::LongForSparse { name: parameter.name.clone(), n: parameter.len });
            }
            if positions.insert(parameter.name.clone(), position).is_some() {
                return Err(LayoutError::Twice(parameter.name.clone()));
            }
        }
        Ok(positions)
    }
}
