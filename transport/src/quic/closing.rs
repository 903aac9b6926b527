//! Links that their owners have dropped, and whose last bytes are on their way. The next link to the same peer comes after them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::Peer;

/// See the module.
#[derive(Debug)]
pub(super) struct Closing {
    /// Whether the next link was asked for, by peer.
    links: Mutex<BTreeMap<Peer, bool>>,
    /// To whom links are to be opened now that were asked for before.
    now: UnboundedSender<Peer>,
}

impl Closing {
    pub(super) fn new() -> (Arc<Self>, UnboundedReceiver<Peer>) {
        let (now, asked) = unbounded_channel();
        (Arc::new(Self { links: Mutex::default(), now }), asked)
    }

    fn links(&self) -> MutexGuard<'_, BTreeMap<Peer, bool>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The link to that peer was dropped.
    pub(super) fn begin(&self, peer: Peer) {
        self.links().insert(peer, false);
    }

    /// The next link to that peer is asked for. Whether that has to wait.
    pub(super) fn asks(&self, peer: Peer) -> bool {
        self.links().get_mut(&peer).map(|is_asked| *is_asked = true).is_some()
    }

    /// The dropped link has ended.
    pub(super) fn end(&self, peer: Peer) {
        if self.links().remove(&peer) == Some(true) {
            // Without its network nobody wants one.
            let _ = self.now.send(peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_while_a_link_ends_is_asked_for_once_after_it() {
        let (closing, mut now) = Closing::new();
        assert!(!closing.asks(Peer(1)));
        closing.begin(Peer(1));
        assert!(closing.asks(Peer(1)) && closing.asks(Peer(1)) && !closing.asks(Peer(2)));
        assert!(now.try_recv().is_err());
        closing.end(Peer(1));
        assert_eq!((now.try_recv(), now.try_recv().is_err()), (Ok(Peer(1)), true));
        closing.begin(Peer(1));
        closing.end(Peer(1));
        assert!(now.try_recv().is_err() && !closing.asks(Peer(1)));
    }
}
