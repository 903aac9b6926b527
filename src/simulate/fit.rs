//! The model of overlap from recorded gradients.

use gleaner_algorithms::select;
use gleaner_testbed::quantity::grouped;
use gleaner_testbed::simulation::Overlap;

use super::Simulate;
use super::table::columns;
use crate::reduce::npy::NpyError;
use crate::reduce::open_gradients;

/// Fits, and shows how near the model comes.
pub fn run(simulate: &Simulate) -> Result<String, String> {
    let vectors = open_gradients(&simulate.fit).map_err(|error| error.to_string())?;
    let mut gradients = Vec::new();
    for vector in &vectors {
        let mut values = Vec::with_capacity(vector.len());
        vector
            .pieces::<NpyError>(|_, piece| {
                values.extend_from_slice(piece);
                Ok(())
            })
            .map_err(|error| error.to_string())?;
        gradients.push(values);
    }
    let n = gradients[0].len();
    let method = simulate.choice.method().map_err(|error| error.to_string())?;
    let k = method.sparsity().k(n).map_err(|error| error.to_string())?.max(1);
    let overlap = Overlap::of_gradients(&gradients, k);
    if simulate.json {
        return Ok(
            serde_json::json!({ "params": n, "k": k, "workers": gradients.len(), "overlap": overlap })
                .to_string()
                + "\n",
        );
    }
    let mut seen = vec![false; n];
    let mut count = 0u64;
    let mut cells = vec![["workers", "union", "model"].map(String::from).to_vec()];
    for (workers, gradient) in gradients.iter().enumerate() {
        for index in select::top_k_dense(gradient, k).indices {
            count += u64::from(!std::mem::replace(&mut seen[index as usize], true));
        }
        let model = overlap.union((workers + 1) as f64, k as f64, n as f64);
        cells.push(vec![(workers + 1).to_string(), grouped(count), grouped(model.round() as u64)]);
    }
    Ok(format!(
        "{} gradients of {} entries, k = {}: different entries that the first workers choose together\n\n{}\n--overlap {:.4},{:.4}\n",
        gradients.len(),
        grouped(n as u64),
        grouped(k as u64),
        columns(&cells),
        overlap.shared,
        overlap.support
    ))
}
