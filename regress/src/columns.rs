//! Samples by feature (CSC), for coordinate descent. Features that no sample has are left out: their weights stay zero.

use crate::data::Samples;

/// The columns of features that some sample has.
pub(crate) struct Columns {
    /// Their features, ascending.
    pub(crate) features: Vec<u32>,
    /// Where each column starts, and the end of the last.
    starts: Vec<usize>,
    rows: Vec<u32>,
    values: Vec<f32>,
    /// Of each column, the sum of the squares.
    pub(crate) squares: Vec<f64>,
    /// Entries of the sample that has most.
    pub(crate) longest_row: usize,
}

impl Columns {
    /// Of samples of n features.
    pub(crate) fn of(samples: &Samples, n: usize) -> Self {
        let mut counts = vec![0_usize; n];
        samples.rows().for_each(|row| row.indices.iter().for_each(|&index| counts[index as usize] += 1));
        let features: Vec<u32> = (0..n as u32).filter(|&index| counts[index as usize] > 0).collect();
        let mut starts = vec![0];
        // From here on, where the next entry of a feature goes.
        let mut next = counts;
        let mut end = 0;
        for &index in &features {
            let start = end;
            end += std::mem::replace(&mut next[index as usize], start);
            starts.push(end);
        }
        let (mut rows, mut values) = (vec![0; end], vec![0.0; end]);
        for (number, row) in samples.rows().enumerate() {
            for (index, value) in row.iter() {
                let place = &mut next[index as usize];
                rows[*place] = number as u32;
                values[*place] = value;
                *place += 1;
            }
        }
        let longest_row = samples.rows().map(|row| row.indices.len()).max().unwrap_or(0);
        let mut columns = Self { features, starts, rows, values, squares: Vec::new(), longest_row };
        let square = |column| columns.iter(column).map(|(_, x)| x * x).sum();
        columns.squares = (0..columns.len()).map(square).collect();
        columns
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.features.len()
    }

    /// (sample, value) of a column.
    pub(crate) fn iter(&self, column: usize) -> impl Iterator<Item = (usize, f64)> + '_ {
        let range = self.starts[column]..self.starts[column + 1];
        let values = self.values[range.clone()].iter().map(|&value| f64::from(value));
        self.rows[range].iter().map(|&row| row as usize).zip(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Shape;

    #[test]
    fn columns_are_the_rows_turned() {
        let (mut samples, n) = (Samples::default(), 400);
        (0..30).for_each(|number| Shape::Webspam.sample(1, number, n, &mut samples));
        let columns = Columns::of(&samples, n);
        assert!(columns.len() < n);
        let mut turned: Vec<(usize, u32, f64)> = (0..columns.len())
            .flat_map(|column| {
                columns.iter(column).map(move |(row, value)| (row, column, value)).collect::<Vec<_>>()
            })
            .map(|(row, column, value)| (row, columns.features[column], value))
            .collect();
        turned.sort_by_key(|&(row, index, _)| (row, index));
        let all = samples.rows().enumerate();
        let expected: Vec<(usize, u32, f64)> = all
            .flat_map(|(number, row)| {
                row.iter().map(move |(i, x)| (number, i, f64::from(x))).collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(turned, expected);
        let squares: f64 = columns.squares.iter().sum();
        assert!((squares - 30.0).abs() < 1e-4, "every sample has length 1");
    }
}
