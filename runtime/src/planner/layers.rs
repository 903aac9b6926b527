//! Layers: parameters that are never exchanged apart, in the order in which backpropagation finishes them.

use std::collections::HashMap;
use std::time::Duration;

use gleaner_algorithms::{Method, Sparsity};

/// A layer has at least this many entries to be selected in a step.
const FEWEST: f64 = 16.0;

/// The parameters as layers, in the order in which they are finished. With a sparse method a parameter that has fewer than
/// 16 entries to be selected is one layer with those after it: a bias by itself would have a few entries chosen in each
/// step, which slows training down.
pub fn of(order: &[usize], entries: impl Fn(usize) -> usize, method: &Method) -> Vec<Vec<usize>> {
    let n: usize = order.iter().map(|&position| entries(position)).sum();
    let density = match method.sparsity() {
        _ if !method.collective().is_sparse() => {
            return order.iter().map(|&position| vec![position]).collect();
        }
        Sparsity::Density(density) => density,
        Sparsity::K(k) => k as f64 / n.max(1) as f64,
    };
    let (mut layers, mut layer, mut selected) = (Vec::new(), Vec::new(), 0.0);
    for &position in order {
        layer.push(position);
        selected += density * entries(position) as f64;
        if selected >= FEWEST {
            layers.push(std::mem::take(&mut layer));
            selected = 0.0;
        }
    }
    match layers.last_mut() {
        Some(last) => last.append(&mut layer),
        None => layers.push(layer),
    }
    layers
}

/// What the backward pass of each layer took, in seconds: from when what comes before was finished.
pub fn between(layers: &[Vec<usize>], finished: &[(usize, Duration)]) -> Vec<f64> {
    let mut took = HashMap::new();
    let mut before = Duration::ZERO;
    for &(position, at) in finished {
        took.insert(position, (at - before).as_secs_f64());
        before = at;
    }
    let of = |layer: &Vec<usize>| layer.iter().filter_map(|position| took.get(position)).sum();
    layers.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_few_entries_to_select_travels_with_what_follows() {
        let entries = [100, 5000, 40, 60, 3000, 10];
        let layers = |method: Method| of(&[0, 1, 2, 3, 4, 5], |position| entries[position], &method);
        assert_eq!(layers(Method::ring()).len(), 6);
        let merged = [vec![0, 1], vec![2, 3, 4, 5]];
        assert_eq!(layers(Method::spardl().density(0.01)), merged);
        assert_eq!(layers(Method::spardl().k(82)), merged);
        assert_eq!(layers(Method::spardl().density(1e-6)), [vec![0, 1, 2, 3, 4, 5]]);
        assert_eq!(layers(Method::spardl().density(1.0)).len(), 5);
    }

    #[test]
    fn a_layer_takes_the_time_of_its_parameters() {
        let ms = Duration::from_millis;
        let times = between(&[vec![2, 0], vec![1]], &[(2, ms(5)), (0, ms(7)), (1, ms(17))]);
        assert!((times[0] - 0.007).abs() < 1e-9 && (times[1] - 0.010).abs() < 1e-9, "{times:?}");
    }
}
