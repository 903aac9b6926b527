//! Which hellos were received before.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};

/// Hellos that are remembered, 32 bytes each.
const REMEMBERED: usize = 1 << 16;

/// The public keys of the last hellos that were made with the job's key, so that none is answered twice. Others add none.
#[derive(Debug, Default)]
pub(super) struct Heard(Mutex<Keys>);

#[derive(Debug, Default)]
struct Keys {
    known: HashSet<[u8; 32]>,
    order: VecDeque<[u8; 32]>,
}

impl Heard {
    /// Whether it is received for the first time, as far as that is remembered.
    pub(super) fn is_new(&self, key: [u8; 32]) -> bool {
        let Keys { known, order } = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.insert(key) {
            return false;
        }
        order.push_back(key);
        if order.len() > REMEMBERED
            && let Some(oldest) = order.pop_front()
        {
            known.remove(&oldest);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer that has the key may say as many hellos as it likes.
    #[test]
    fn hellos_that_are_remembered_are_bounded() {
        let heard = Heard::default();
        let key = |number: u64| {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&number.to_le_bytes());
            key
        };
        let count = REMEMBERED as u64 + 100;
        assert!((0..count).all(|number| heard.is_new(key(number))));
        assert!((100..count).all(|number| !heard.is_new(key(number))), "one of the last was forgotten");
        let keys = heard.0.lock().unwrap();
        assert_eq!((keys.known.len(), keys.order.len()), (REMEMBERED, REMEMBERED));
    }
}
