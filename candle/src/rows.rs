//! Embeddings: a step uses some rows of a matrix, and their gradients are handed over as entries.

use std::sync::Weak;

use candle_core::backprop::GradStore;
use candle_core::{CpuStorage, CustomOp1, DType, Error, Layout, Result, Shape, Tensor, Var};
use gleaner_algorithms::bag::Entries;

use crate::watch::{Now, Shared, with_values};
use crate::{Overlap, OverlapError};

/// An embedding as it is used in one step, with its present values.
#[derive(Clone)]
pub struct Rows {
    table: Tensor,
    name: String,
    position: usize,
    age: u64,
    shared: Weak<Shared>,
}

/// The gradient of some rows, in the order in which they were selected.
pub(crate) struct RowGradients {
    position: usize,
    numbers: Vec<u32>,
    values: Vec<f32>,
}

impl Rows {
    /// The rows with these numbers, (numbers, width). A row may be there several times, and this may be called several times in a
    /// step: gradients of one row add up. Time and memory grow with the rows that are selected, and not with the matrix.
    ///
    /// # Errors
    /// A number of no row, and numbers that are not one list of `u32`.
    pub fn select(&self, numbers: &Tensor) -> Result<Tensor> {
        let rows = Var::from_tensor(&self.table.index_select(numbers, 0)?)?;
        let numbers = numbers.to_vec1()?;
        rows.apply_op1(Selected { rows: self.clone(), numbers })
    }
}

/// The identity, of the rows that were selected.
struct Selected {
    rows: Rows,
    numbers: Vec<u32>,
}

impl CustomOp1 for Selected {
    fn name(&self) -> &'static str {
        "selected rows"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let values = crate::watch::slice(storage, layout)?.to_vec();
        Ok((CpuStorage::F32(values), layout.shape().clone()))
    }

    fn bwd(&self, _rows: &Tensor, _selected: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let Some(shared) = self.rows.shared.upgrade() else { return Ok(None) };
        let mut now = shared.now();
        let Now { age, pass: Some(pass) } = &mut *now else { return Ok(None) };
        if *age != self.rows.age {
            let error = OverlapError::Stale(self.rows.name.clone());
            let stopped = error.to_string();
            pass.error = Some(error);
            return Err(Error::Msg(stopped));
        }
        let values = with_values(gradient, <[f32]>::to_vec)?;
        pass.rows.push(RowGradients { position: self.rows.position, numbers: self.numbers.clone(), values });
        Ok(None)
    }
}

/// Of one embedding: its entries that are not zero. Gradients of one row are added in the order in which they came.
fn entries(gradients: &[&RowGradients], width: usize) -> Entries {
    let of = |gradients: &&RowGradients| gradients.numbers.iter().copied().zip(0..).collect::<Vec<_>>();
    let all = gradients.iter().enumerate();
    let mut rows: Vec<(u32, usize, usize)> =
        all.flat_map(|(part, g)| of(g).into_iter().map(move |(row, at)| (row, part, at))).collect();
    rows.sort_unstable();
    let mut sums = Entries::default();
    for same in rows.chunk_by(|a, b| a.0 == b.0) {
        let mut sum = vec![0.0; width];
        for &(_, part, at) in same {
            let values = &gradients[part].values[at * width..][..width];
            sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
        let first = same[0].0 * width as u32;
        for (index, value) in (first..).zip(sum).filter(|(_, value)| *value != 0.0) {
            sums.push(index, value);
        }
    }
    sums
}

/// Refuses what is no matrix in main memory.
pub(crate) fn expect_tables(embeddings: &[(String, Var)]) -> std::result::Result<(), OverlapError> {
    let is_table = |table: &Var| table.rank() == 2 && table.dtype() == DType::F32 && table.device().is_cpu();
    match embeddings.iter().find(|(_, table)| !is_table(table)) {
        None => Ok(()),
        Some((name, table)) => Err(OverlapError::NoTable {
            name: name.clone(),
            shape: table.shape().clone(),
            dtype: table.dtype(),
            device: table.device().location(),
        }),
    }
}

/// Appends embeddings to a layout.
pub(crate) fn with_sparse(
    layout: gleaner_runtime::Layout,
    embeddings: &[(String, Var)],
) -> gleaner_runtime::Layout {
    let add = |layout: gleaner_runtime::Layout, (name, table): &(String, Var)| {
        layout.sparse_parameter(name, table.elem_count())
    };
    embeddings.iter().fold(layout, add)
}

impl Overlap<'_> {
    /// An embedding, of which the forward pass of this step [selects](Rows::select) rows. After [`wait`](Self::wait) it is old.
    ///
    /// # Errors
    /// A name that is no embedding's.
    pub fn rows(&mut self, name: &str) -> std::result::Result<Rows, OverlapError> {
        let position = self.embeddings.binary_search_by(|(known, _)| known.as_str().cmp(name));
        let position = position.map_err(|_| OverlapError::NoEmbedding(name.into()))?;
        self.since.get_or_insert_with(std::time::Instant::now);
        let table = self.embeddings[position].1.as_tensor().detach();
        let shared = std::sync::Arc::downgrade(&self.shared);
        Ok(Rows { table, name: name.into(), position, age: self.shared.now().age, shared })
    }

    /// Hands over the gradients of all embeddings: of rows that were selected, or of matrices that the model used directly.
    pub(crate) fn hand_over_rows(
        &self,
        store: &GradStore,
        rows: Vec<RowGradients>,
    ) -> std::result::Result<(), OverlapError> {
        let mut gradients = self.shared.gradients();
        for (position, (name, table)) in self.embeddings.iter().enumerate() {
            let own: Vec<&RowGradients> = rows.iter().filter(|rows| rows.position == position).collect();
            let entries = match store.get(table) {
                Some(_) if !own.is_empty() => return Err(OverlapError::TwoWays(name.clone())),
                Some(gradient) => with_values(gradient, Entries::from_dense)?,
                None => entries(&own, table.dim(1)?),
            };
            gradients.ready_sparse(name, &entries)?;
        }
        Ok(())
    }
}
