//! Which form is smallest, from one pass over the indices.

use super::super::header::Form;
use super::implied_words;
use super::write::gap;

/// A form, its parameter, and how many words the indices take in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Packing {
    pub(in super::super) form: Form,
    pub(in super::super) parameter: u8,
    pub(in super::super) words: u64,
}

/// Parameters of Rice that one pass tries.
pub(in super::super) const TRIED: usize = 4;

/// The smallest form of ascending indices below `len`; of equal ones the form with the lowest number, and the parameter
/// that takes the fewest bits, and of such the lowest.
pub(in super::super) fn choose(indices: &[u32], len: u64) -> Packing {
    let Some(&last) = indices.last() else { return Packing { form: Form::Raw, parameter: 0, words: 0 } };
    let count = indices.len() as u64;
    let mut survey = Survey::of(indices, last);
    let rice = loop {
        match survey.rice(count) {
            Some(rice) => break rice,
            None => {
                survey.lowest = survey.lowest.saturating_sub(TRIED as u32 - 1);
                survey.pass(indices);
            }
        }
    };
    smallest(count, len, survey.widest, rice)
}

/// The smallest form of so many indices below `len`, of which the widest gaps and Rice's words are known.
pub(in super::super) fn smallest(count: u64, len: u64, widest: u32, rice: Packing) -> Packing {
    let implied = |form, parameter| {
        let words = implied_words(form, parameter, count, len).unwrap_or(u64::MAX);
        Packing { form, parameter, words }
    };
    let width = 32 - widest.leading_zeros();
    let choices = [
        implied(Form::Raw, 0),
        implied(Form::Packed, width as u8),
        implied(Form::Bitmap, 0),
        implied(Form::EliasFano, elias_fano(count, len)),
        rice,
    ];
    // The first of the smallest ones, as `min_by_key` gives.
    choices.into_iter().min_by_key(|choice| choice.words).unwrap_or(rice)
}

/// The parameter of Elias–Fano that takes the fewest bits: one more costs a bit for each entry, and saves half of what
/// the higher parts take, rounded up.
pub(in super::super) fn elias_fano(count: u64, len: u64) -> u8 {
    let highs = |l: u8| len.saturating_sub(1) >> l;
    (0..31).find(|&l| highs(l).div_ceil(2) <= count).unwrap_or(31)
}

/// What one pass over the gaps of a bag measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Survey {
    /// All gaps, bit by bit: as wide as the widest.
    pub(in super::super) widest: u32,
    /// The higher parts of all gaps added up, for the parameters from `lowest` on.
    pub(in super::super) lowest: u32,
    pub(in super::super) highs: [u32; TRIED],
}

impl Survey {
    /// Tries the largest parameters that can be best.
    ///
    /// One more than k saves Σ ⌈⌊gap / 2^k⌋ / 2⌉ bits, at most half of n + Σ ⌊gap / 2^k⌋, and costs n. It is worth it
    /// only if that sum is above n, and the sum of all gaps, divided by 2^k, is no less than it.
    fn of(indices: &[u32], last: u32) -> Self {
        let (count, gaps) = (indices.len() as u64, u64::from(last) + 1 - indices.len() as u64);
        let largest = (0u32..31).find(|&k| gaps >> k <= count).unwrap_or(31);
        let lowest = (largest + 1).saturating_sub(TRIED as u32);
        let mut survey = Survey { widest: 0, lowest, highs: [0; TRIED] };
        survey.pass(indices);
        survey
    }

    /// The best parameter for so many indices, unless a lower one than those tried may be better: what one more costs and saves shows
    /// that the sizes fall and then rise, so only if the lowest of them is the best one, lower ones are tried.
    pub(in super::super) fn rice(&self, count: u64) -> Option<Packing> {
        let bits = |t: usize| count * u64::from(self.lowest + t as u32 + 1) + u64::from(self.highs[t]);
        let best = (0..TRIED).min_by_key(|&t| bits(t)).unwrap_or(0);
        let parameter = (self.lowest + best as u32) as u8;
        let packing = Packing { form: Form::Rice, parameter, words: bits(best).div_ceil(32) };
        (best > 0 || self.lowest == 0).then_some(packing)
    }

    /// Adds up for the present parameters. No sum overflows, for all gaps together are below 2³².
    fn pass(&mut self, indices: &[u32]) {
        let mut widest = 0;
        let mut highs = [0; TRIED];
        let mut take = |gap: u32| {
            widest |= gap;
            for (t, sum) in highs.iter_mut().enumerate() {
                *sum += gap >> (self.lowest + t as u32);
            }
        };
        indices.first().into_iter().for_each(|&first| take(first));
        indices.iter().zip(&indices[1..]).for_each(|(&before, &index)| take(gap(index, before)));
        (self.widest, self.highs) = (widest, highs);
    }
}
