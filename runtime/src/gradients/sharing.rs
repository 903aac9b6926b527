//! Groups that compete for k of the whole gradient: what each held of the largest entries decides how many it sends from the next
//! step on. All ranks count in the same steps, and add their counts up.

use gleaner_algorithms::collectives::MethodError;
use gleaner_algorithms::{Method, SelectOver, Sparsity, shares};

use super::Gradients;
use crate::failure::{Error, Failure};
use crate::layout::{Layout, Parameter};
use crate::notes::Purpose;
use crate::session::Inner;

/// Steps from one count to the next.
const EVERY: u64 = 10;

/// Shares stay as they are until so small a part of k would go to other groups.
const MOVED: usize = 10;

/// Unless a density or k is asked for, a group delivers at least so many entries, or all that it has. Five in a hundred of a small layer are a
/// few at a time, each of which comes late, while a message with so many takes little longer than an empty one.
const FEWEST: usize = 256;

/// Whether groups deliver at least [`FEWEST`] entries.
fn has_fewest(method: &Method) -> bool {
    method.asked().is_none() && method.collective().is_sparse() && !method.is_auto()
}

/// A method's name, with what it does to small groups: two methods that differ in this alone are not the same.
pub(super) fn named(method: &Method) -> String {
    if has_fewest(method) { format!("{method}, at least {FEWEST} of a group") } else { method.to_string() }
}

/// The method for a group of n entries.
pub(super) fn for_group(method: &Method, n: usize) -> Method {
    let fewest = FEWEST.min(n);
    match method.sparsity().k(n) {
        Ok(k) if has_fewest(method) && k < fewest => method.clone().selecting(Sparsity::K(fewest)),
        _ => method.clone(),
    }
}

impl Gradients {
    /// k of the whole gradient, where groups compete for it.
    fn contested(&self) -> Option<usize> {
        let competes = self.method.selects_over() == SelectOver::Gradient && self.gathering.len() > 1;
        let k = || self.method.sparsity().k(self.layout.selected_from());
        competes.then(k)?.ok()
    }

    /// Whether entries are counted in this step: in the last one of a warm-up of the density, and in every [`EVERY`]th after it.
    pub(super) fn counts_entries(&self) -> bool {
        let learnt =
            (self.exchange.step - self.skipped + 1).checked_sub(self.method.correction().warm_up.max(1));
        learnt.is_some_and(|learnt| learnt.is_multiple_of(EVERY)) && self.contested().is_some()
    }

    /// How many of the k largest entries each parameter holds of those that this worker selects from in this step.
    pub(super) fn count_entries(&self) -> Option<Vec<u64>> {
        let k = self.contested().filter(|_| self.counts_entries())?;
        // Parameters that are delivered whole compete for nothing.
        let of = |p: &Parameter| if p.is_selected_from() { self.accumulated_of(p) } else { Some(&[][..]) };
        let parts: Option<Vec<&[f32]>> = self.layout.parameters.iter().map(of).collect();
        Some(shares::among_largest(&parts?, k))
    }

    /// Shares k out by what all ranks counted, if that moves enough of it. All ranks call it together, between two steps.
    pub(super) fn share_out(&mut self, own: &[u64]) -> Result<(), Error> {
        let note: Vec<u8> = own.iter().flat_map(|count| count.to_le_bytes()).collect();
        let mut counts = vec![0u64; own.len()];
        for (rank, note) in (0..).zip(self.session.gather(Purpose::Share, &note)?) {
            let (words, rest) = note.as_chunks::<8>();
            if words.len() != counts.len() || !rest.is_empty() {
                let reason = format!(
                    "it sent {} bytes of counted entries, expected {}; start every rank with the same program",
                    note.len(),
                    8 * counts.len()
                );
                return Err(self.session.fail(Failure { rank, step: None, reason }));
            }
            for (sum, word) in counts.iter_mut().zip(words) {
                *sum = sum.saturating_add(u64::from_le_bytes(*word));
            }
        }
        let Some(k) = self.contested().filter(|_| counts.iter().any(|&count| count > 0)) else {
            return Ok(());
        };
        let (before, after) = (self.shares(&self.weights), self.shares(&counts));
        if shares::moved(&before, &after) * MOVED < k {
            return Ok(());
        }
        self.weights = counts;
        self.aim()?;
        self.exchange.widen();
        Ok(())
    }

    /// Lets each group select its share. Where k is the same in all steps, all stays as it is.
    pub(super) fn aim(&mut self) -> Result<(), Error> {
        let shares = match &self.density {
            Some(density) => shares::by_length(density.k(), &selected_from(&self.layout)),
            None => self.shares(&self.weights),
        };
        for (number, (mut group, k)) in self.exchange.groups().zip(shares).enumerate() {
            if self.layout.is_sparse(number) || self.layout.is_whole(number) {
                continue;
            }
            if group.routine.aim_at(k)? {
                group.change()?;
            }
        }
        Ok(())
    }

    /// What each group gets of k by the weights of the parameters, or by their lengths where there are no weights. Nothing where
    /// groups do not compete.
    fn shares(&self, weights: &[u64]) -> Vec<usize> {
        let Some(k) = self.contested() else { return Vec::new() };
        let (mut of_groups, mut entries) = (vec![0u64; self.gathering.len()], vec![0; self.gathering.len()]);
        for (position, p) in self.layout.parameters.iter().enumerate().filter(|(_, p)| p.is_selected_from()) {
            let weight = weights.get(position).copied().unwrap_or(p.len as u64);
            of_groups[p.group] = of_groups[p.group].saturating_add(weight);
            entries[p.group] += p.len;
        }
        shares::by_weight(k, &of_groups, &entries)
    }
}

/// The method of each group and how many entries it has. k of all entries is shared out to those that are not sparse, of which
/// all entries are delivered.
pub(super) fn methods(
    session: &Inner,
    layout: &Layout,
    method: &Method,
) -> Result<Vec<(Method, usize)>, Error> {
    let entries: Vec<usize> = (0..layout.group_count()).map(|g| layout.layers(g).entries()).collect();
    let over = method.selects_over() == SelectOver::Gradient && entries.len() > 1;
    let of_group = |(number, (method, n)): (usize, (Method, usize))| -> Result<(Method, usize), Error> {
        let method = match () {
            () if layout.is_sparse(number) => method.beside(session.workers, n)?,
            () if layout.is_whole(number) => method.whole_beside(),
            () => method,
        };
        Ok((method, n))
    };
    let methods: Vec<(Method, usize)> = match method.sparsity() {
        Sparsity::Density(_) if !over && method.follows_norm_share().is_none() => {
            entries.iter().map(|&n| (for_group(method, n), n)).collect()
        }
        sparsity => {
            let k = sparsity.k(layout.selected_from()).map_err(MethodError::from)?;
            let selected = selected_from(layout);
            let lengths: Vec<u64> = selected.iter().map(|&n| n as u64).collect();
            let shares = match over {
                true => shares::by_weight(k, &lengths, &selected),
                false => shares::by_length(k, &selected),
            };
            shares
                .into_iter()
                .zip(entries)
                .map(|(k, n)| (method.clone().selecting(Sparsity::K(k)), n))
                .collect()
        }
    };
    methods.into_iter().enumerate().map(of_group).collect()
}

/// How many entries of each group k is shared out to: none of one that is delivered whole.
fn selected_from(layout: &Layout) -> Vec<usize> {
    let of = |number| match layout.is_sparse(number) || layout.is_whole(number) {
        true => 0,
        false => layout.layers(number).entries(),
    };
    (0..layout.group_count()).map(of).collect()
}
