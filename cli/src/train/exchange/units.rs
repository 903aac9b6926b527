//! Which parameters are one unit: a layer's, as long as they are not too few to be exchanged by themselves.

use std::ops::Range;

use gleaner_algorithms::Method;
use gleaner_runtime::Layout;

use crate::train::summary::density;
use gleaner_trainer::parameters::Parameters;

/// A unit has at least so many entries, and so many to be selected in a step: a bias by itself would be a message of its own, and a few
/// entries chosen of it in each step slow training down.
const FEWEST: f64 = 1024.0;
const FEWEST_SELECTED: f64 = 16.0;

/// Where units may be exchanged at another time than others, none has more than this part of the model: a layer with most of it would fit into
/// no budget, or leave no room beside it.
const MOST: usize = 16;

/// Which parameters are exchanged together.
pub struct Units {
    /// One group for each unit, in the order of the parameters.
    pub layout: Layout,
    /// How many there are.
    pub count: usize,
    /// Of each parameter, the pieces that the layout has, by name.
    pub pieces: Vec<Vec<(String, Range<usize>)>>,
}

/// Units in the order of the parameters. Parameters are of one layer where their names are the same up to the last point. `cuts` layers that
/// are too large to be exchanged at another time than others.
pub fn units(parameters: &Parameters, method: &Method, cuts: bool) -> Units {
    let named = parameters.list.iter().map(|p| (p.name.as_str(), p.count()));
    of(&named.collect::<Vec<_>>(), method, cuts)
}

fn of(parameters: &[(&str, usize)], method: &Method, cuts: bool) -> Units {
    let n: usize = parameters.iter().map(|(_, entries)| entries).sum();
    let density = density(method, n);
    let layer = |name: &str| name.rsplit_once('.').map_or(name, |(layer, _)| layer).to_owned();
    let mut units = Units { layout: Layout::new(), count: 0, pieces: Vec::new() };
    // Entries of the present unit, and of the parameters that are left.
    let (mut entries, mut left, mut before) = (f64::INFINITY, n, None);
    let is_enough = |entries: f64| entries >= FEWEST && density * entries >= FEWEST_SELECTED;
    for &(name, len) in parameters {
        let mut pieces = Vec::new();
        for piece in pieces_of(name, len, if cuts { n.div_ceil(MOST) } else { len }) {
            let is_new = before.as_ref() != Some(&layer(name)) || !pieces.is_empty();
            if units.count == 0 || is_new && is_enough(entries) && is_enough(left as f64) {
                (units.layout, entries) = (units.layout.group(), 0.0);
                units.count += 1;
            }
            let len = piece.1.len();
            units.layout = units.layout.parameter(&piece.0, len);
            entries += len as f64;
            left -= len;
            before = Some(layer(name));
            pieces.push(piece);
        }
        units.pieces.push(pieces);
    }
    units
}

/// As few pieces as have at most so many entries each, and are about equally long.
fn pieces_of(name: &str, len: usize, most: usize) -> Vec<(String, Range<usize>)> {
    let count = len.div_ceil(most.max(1)).max(1);
    let cut = |piece: usize| len * piece / count;
    let named = |piece: usize| match count {
        1 => name.to_owned(),
        _ => format!("{name}, piece {} of {count}", piece + 1),
    };
    (0..count).map(|piece| (named(piece), cut(piece)..cut(piece + 1))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYERS: [(&str, usize); 9] = [
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

    #[test]
    fn a_unit_is_a_layer_that_is_worth_it() {
        let groups = |method: Method| of(&LAYERS, &method, false).count;
        // The embedding; the LSTM; the normalisation with what follows; the output.
        assert_eq!(groups(Method::ring()), 4);
        // Of 2000 entries a hundredth is 20; of the 2020 after the LSTM, too.
        assert_eq!(groups(Method::spardl().density(0.01)), 4);
        // 16 of 4000: the embedding goes with the LSTM, and all that follows is one.
        assert_eq!(groups(Method::spardl().density(0.004)), 2);
        assert_eq!(groups(Method::spardl().k(2)), 1);
        assert_eq!(of(&[], &Method::ring(), true).count, 0);
    }

    #[test]
    fn layers_that_fit_into_no_budget_are_cut() {
        // Of 15,050 entries at most 941 in a piece: 3, 5, 5, 2 and 4 pieces; of these, units have at least 1024 entries.
        let units = of(&LAYERS, &Method::ring(), true);
        let counts: Vec<usize> = units.pieces.iter().map(Vec::len).collect();
        assert_eq!(counts, [3, 5, 5, 1, 1, 2, 1, 4, 1]);
        for (pieces, (name, len)) in units.pieces.iter().zip(LAYERS) {
            let mut end = 0;
            for (piece, range) in pieces {
                assert!(piece.starts_with(name) && range.start == end && range.len() <= 941);
                end = range.end;
            }
            assert_eq!(end, len);
        }
        assert_eq!(units.pieces[1][1].0, "lstm.input, piece 2 of 5");
        assert!((7..=9).contains(&units.count), "{}", units.count);
        // Sparse ones as far as enough is selected of each.
        assert_eq!(of(&LAYERS, &Method::spardl().k(2), true).count, 1);
    }
}
