//! The discrete cosine transform, in blocks: an orthonormal change of basis before entries are selected, as in DeMo (Peng, Quesnelle and
//! Kingma, *DeMo: Decoupled Momentum Optimization*, 2024, Algorithm 1). DCT-II of Ahmed, Natarajan and Rao, *Discrete Cosine Transform*, 1974.

use std::collections::BTreeMap;
use std::f64::consts::PI;

/// The transform of blocks of so many values, and of the shorter ones at the ends of parameters.
#[derive(Clone, Debug)]
pub struct Dct {
    block: usize,
    /// By the length of a block, its matrix: row k has cos(π(2i + 1)k / 2N), each row of length 1.
    matrices: BTreeMap<usize, Vec<f32>>,
}

impl Dct {
    /// For parameters of these lengths, in blocks of `block` values, at least 1.
    pub fn new(block: usize, lengths: impl IntoIterator<Item = usize>) -> Self {
        let ends = lengths.into_iter().map(|length| length % block);
        let matrices = ends.chain([block]).filter(|&n| n > 0).map(|n| (n, matrix(n))).collect();
        Self { block, matrices }
    }

    /// Transforms the values of a parameter, block by block.
    pub fn forward(&self, values: &mut [f32]) {
        self.apply(values, |matrix, x, y| {
            for (y, row) in y.iter_mut().zip(matrix.chunks_exact(x.len())) {
                *y = row.iter().zip(x).map(|(m, x)| m * x).sum();
            }
        });
    }

    /// Takes the transform back.
    pub fn inverse(&self, values: &mut [f32]) {
        self.apply(values, |matrix, x, y| {
            y.fill(0.0);
            for (&x, row) in x.iter().zip(matrix.chunks_exact(x.len())).filter(|(x, _)| **x != 0.0) {
                y.iter_mut().zip(row).for_each(|(y, m)| *y += m * x);
            }
        });
    }

    fn apply(&self, values: &mut [f32], multiply: impl Fn(&[f32], &[f32], &mut [f32])) {
        let mut product = vec![0.0; self.block];
        for values in values.chunks_mut(self.block) {
            let Some(matrix) = self.matrices.get(&values.len()) else { continue };
            let product = &mut product[..values.len()];
            multiply(matrix, values, product);
            values.copy_from_slice(product);
        }
    }
}

fn matrix(n: usize) -> Vec<f32> {
    let of = |k: usize, i: usize| {
        let length = if k == 0 { 1.0 } else { 2.0 } / n as f64;
        (length.sqrt() * (PI * (2 * i + 1) as f64 * k as f64 / (2 * n) as f64).cos()) as f32
    };
    (0..n * n).map(|place| of(place / n, place % n)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gleaner_statistics::random::Generator;

    /// Rows have length 1 and are at right angles to each other.
    #[test]
    fn the_transform_is_orthonormal() {
        for n in [1, 2, 7, 64] {
            let matrix = matrix(n);
            let rows: Vec<&[f32]> = matrix.chunks(n).collect();
            for (a, b) in (0..n).flat_map(|a| (0..n).map(move |b| (a, b))) {
                let product: f64 =
                    rows[a].iter().zip(rows[b]).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
                let expected = if a == b { 1.0 } else { 0.0 };
                assert!((product - expected).abs() < 1e-6, "{n}: rows {a} and {b}");
            }
        }
    }

    /// Whatever the length of the parameter, norms stay and the inverse restores.
    #[test]
    fn the_inverse_restores() {
        let lengths = [1, 5, 63, 64, 65, 128, 200, 1000];
        for block in [1, 8, 64] {
            let dct = Dct::new(block, lengths);
            for length in lengths {
                let mut generator = Generator::new(length as u64, "dct", block as u64);
                let before: Vec<f32> = (0..length).map(|_| generator.symmetric()).collect();
                let norm = |values: &[f32]| values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
                let mut values = before.clone();
                dct.forward(&mut values);
                assert!((norm(&values) / norm(&before) - 1.0).abs() < 1e-5, "{length} in blocks of {block}");
                dct.inverse(&mut values);
                let off = values.iter().zip(&before).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(off < 1e-5, "{length} in blocks of {block}: off by {off}");
            }
        }
    }

    /// A constant is in the first entry of a block alone, and a cosine in its own.
    #[test]
    fn a_cosine_is_one_entry() {
        let dct = Dct::new(8, [8]);
        for k in 0..8 {
            let mut values: Vec<f32> =
                (0..8).map(|i| (PI * (2 * i + 1) as f64 * k as f64 / 16.0).cos() as f32).collect();
            dct.forward(&mut values);
            let expected = if k == 0 { 8f32.sqrt() } else { 2.0 };
            for (place, value) in values.iter().enumerate() {
                let expected = if place == k { expected } else { 0.0 };
                assert!((value - expected).abs() < 1e-5, "cosine {k}: {values:?}");
            }
        }
    }
}
