//! Bags that have come and wait for the step that wants them, by peer and tag. Credit bounds how much that is.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use gleaner_transport::{Peer, Tag};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    waiting: HashMap<(Peer, Tag), VecDeque<Bytes>>,
    /// Memory for more queues.
    spare: Vec<VecDeque<Bytes>>,
}

impl Inbox {
    pub(crate) fn put(&mut self, peer: Peer, tag: Tag, payload: Bytes) {
        let spare = &mut self.spare;
        let queue = self.waiting.entry((peer, tag)).or_insert_with(|| spare.pop().unwrap_or_default());
        queue.push_back(payload);
    }

    /// The next from this peer.
    pub(crate) fn take(&mut self, peer: Peer, tag: Tag) -> Option<Bytes> {
        let queue = self.waiting.get_mut(&(peer, tag))?;
        let payload = queue.pop_front();
        if queue.is_empty() {
            self.spare.extend(self.waiting.remove(&(peer, tag)).filter(|_| self.spare.len() < 8));
        }
        payload
    }

    /// Gives what is here with this tag.
    pub(crate) fn clear(&mut self, tag: Tag) -> Vec<(Peer, Bytes)> {
        let gone = self.waiting.extract_if(|(_, of), _| *of == tag);
        gone.flat_map(|((peer, _), queue)| queue.into_iter().map(move |payload| (peer, payload))).collect()
    }
}
