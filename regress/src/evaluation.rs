//! How good a model is, from the margins that it gives to samples.

use crate::objective::Loss;

/// A sample's margin and its y.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// w·x.
    pub margin: f64,
    /// 1 or −1, or for least squares any number.
    pub y: f32,
}

/// The result of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// The mean loss, without penalties.
    pub loss: f64,
    /// The share of samples whose class is predicted; none for least squares.
    pub accuracy: Option<f64>,
    /// The chance that of a sample of each class the one of the positive class has the larger margin, where ties count half; none
    /// unless there are samples of both.
    pub auc: Option<f64>,
}

/// Evaluates scores, in any order: the result is the same bit by bit. There must be some.
pub fn evaluate(loss: Loss, scores: &mut [Score]) -> Evaluation {
    scores.sort_unstable_by(|a, b| a.margin.total_cmp(&b.margin).then(a.y.total_cmp(&b.y)));
    let count = scores.len() as f64;
    let mean = scores.iter().map(|score| loss.value(score.margin, f64::from(score.y))).sum::<f64>() / count;
    if !loss.classifies() {
        return Evaluation { loss: mean, accuracy: None, auc: None };
    }
    let right = scores.iter().filter(|score| (score.margin > 0.0) == (score.y > 0.0)).count();
    Evaluation { loss: mean, accuracy: Some(right as f64 / count), auc: auc(scores) }
}

/// The area under the curve of true against false positives, from scores by ascending margin.
fn auc(scores: &[Score]) -> Option<f64> {
    let (mut below, mut positive, mut twice) = (0_u64, 0_u64, 0_u128);
    for tied in scores.chunk_by(|a, b| a.margin == b.margin) {
        let here = tied.iter().filter(|score| score.y > 0.0).count() as u64;
        let others = tied.len() as u64 - here;
        // Every positive sample beats the negative ones below, and half of those beside it.
        twice += u128::from(here) * u128::from(2 * below + others);
        below += others;
        positive += here;
    }
    let pairs = u128::from(below) * u128::from(positive);
    (pairs > 0).then(|| twice as f64 / (2 * pairs) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn auc_counts_pairs(scores in proptest::collection::vec((-3i8..4, any::<bool>()), 1..40)) {
            let score = |&(margin, positive): &(i8, bool)| Score { margin: f64::from(margin), y: if positive { 1.0 } else { -1.0 } };
            let mut scores: Vec<Score> = scores.iter().map(score).collect();
            let of = |y: f32| scores.iter().filter(move |score| score.y == y).map(|score| score.margin).collect::<Vec<f64>>();
            let (positive, negative) = (of(1.0), of(-1.0));
            let won: f64 = positive.iter().flat_map(|a| negative.iter().map(move |b| (a, b)))
                .map(|(a, b)| if a > b { 1.0 } else if a == b { 0.5 } else { 0.0 }).sum();
            let pairs = (positive.len() * negative.len()) as f64;
            let right = positive.iter().filter(|m| **m > 0.0).count() + negative.iter().filter(|m| **m <= 0.0).count();
            let count = scores.len() as f64;
            let found = evaluate(Loss::Logistic, &mut scores);
            prop_assert_eq!(found.accuracy, Some(right as f64 / count));
            match found.auc {
                Some(auc) => prop_assert!((auc - won / pairs).abs() < 1e-12),
                None => prop_assert_eq!(pairs, 0.0),
            }
        }
    }
}
