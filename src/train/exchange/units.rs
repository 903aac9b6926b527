//! Which parameters are one unit: a layer's, as long as they are not too few to travel by themselves.

use gleaner_algorithms::{Method, Sparsity};
use gleaner_runtime::Layout;

use crate::train::parameters::Parameters;

/// A unit has at least so many entries, and so many to be selected in a step: a bias by itself would be a message of its own, and a few
/// entries chosen of it in each step slow training down.
const FEWEST: f64 = 1024.0;
const FEWEST_SELECTED: f64 = 16.0;

/// A layout of units in the order of the parameters, and how many there are. Parameters are of one layer where their names are the same up
/// to the last point.
pub fn units(parameters: &Parameters, method: &Method) -> (Layout, usize) {
    let named = parameters.list.iter().map(|p| (p.name.as_str(), p.values().len()));
    of(&named.collect::<Vec<_>>(), method)
}

fn of(parameters: &[(&str, usize)], method: &Method) -> (Layout, usize) {
    let n: usize = parameters.iter().map(|(_, entries)| entries).sum();
    let density = match method.sparsity() {
        _ if !method.collective().is_sparse() => 1.0,
        Sparsity::Density(density) => density,
        Sparsity::K(k) => k as f64 / n.max(1) as f64,
    };
    let layer = |name: &str| name.rsplit_once('.').map_or(name, |(layer, _)| layer).to_owned();
    let (mut layout, mut units) = (Layout::new(), 0);
    // Entries of the present unit, and of the parameters that are left.
    let (mut entries, mut left, mut before) = (f64::INFINITY, n, None);
    let is_enough = |entries: f64| entries >= FEWEST && density * entries >= FEWEST_SELECTED;
    for &(name, len) in parameters {
        let is_new = before.as_ref() != Some(&layer(name));
        if units == 0 || is_new && is_enough(entries) && is_enough(left as f64) {
            (layout, entries) = (layout.group(), 0.0);
            units += 1;
        }
        layout = layout.parameter(name, len);
        entries += len as f64;
        left -= len;
        before = Some(layer(name));
    }
    (layout, units)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_a_layer_that_is_worth_it() {
        let layers = [
            ("embedding", 2000),
            ("lstm.input", 4000),
            ("lstm.recurrent", 4000),
            ("norm.weight", 10),
            ("norm.bias", 10),
            ("middle.weight", 1500),
            ("middle.bias", 500),
            ("output.weight", 3000),
            ("output.bias", 30),
        ];
        let groups = |method: Method| of(&layers, &method).1;
        // The embedding; the LSTM; the normalisation with what follows; the output.
        assert_eq!(groups(Method::ring()), 4);
        // Of 2000 entries a hundredth is 20; of the 2020 after the LSTM, too.
        assert_eq!(groups(Method::spardl().density(0.01)), 4);
        // 16 of 4000: the embedding goes with the LSTM, and all that follows is one.
        assert_eq!(groups(Method::spardl().density(0.004)), 2);
        assert_eq!(groups(Method::spardl().k(2)), 1);
        assert_eq!(of(&[], &Method::ring()).1, 0);
    }
}
