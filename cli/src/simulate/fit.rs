//! The model of overlap from recorded gradients.

use gleaner_testbed::simulation::Overlap;
use gleaner_units::grouped;

use super::Simulate;
use crate::reduce::npy::Vector;
use crate::reduce::open_gradients;
use crate::report::{CommandError, json, table};

/// Fits, and shows how near the model comes.
pub fn run(simulate: &Simulate) -> Result<String, CommandError> {
    let vectors = open_gradients(&simulate.fit)?;
    let gradients = vectors.iter().map(Vector::values).collect::<Result<Vec<_>, _>>()?;
    let n = gradients[0].len();
    let method = simulate.choice.method()?;
    let k = method.sparsity().k(n)?.max(1);
    let unions = Overlap::unions(&gradients, k);
    let overlap = Overlap::fit(&unions, k, n);
    let models: Vec<u64> = (1..=unions.len())
        .map(|workers| overlap.union(workers as f64, k as f64, n as f64).round() as u64)
        .collect();
    if simulate.json {
        let fitted = serde_json::json!({
            "params": n, "k": k, "workers": gradients.len(), "overlap": overlap, "unions": unions, "models": models
        });
        return Ok(json(&fitted));
    }
    let rows = (1..).zip(unions.iter().zip(&models)).map(|(workers, (&union, &model)): (usize, _)| {
        vec![workers.to_string(), grouped(union), grouped(model)]
    });
    let ([n, k], gradients) = ([n, k].map(|count| grouped(count as u64)), gradients.len());
    let (Overlap { shared, support }, table) = (overlap, table(["workers", "union", "model"], rows));
    Ok(format!(
        "{gradients} gradients of {n} entries, k = {k}: different entries that the first workers choose together\n\n{table}\n--overlap \
         {shared:.4},{support:.4}\n"
    ))
}
