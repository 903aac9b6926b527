//! Which links are up, and which their owners have dropped while their last bytes are on their way. The next link to the same peer comes
//! after those.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::Peer;

/// See the module.
#[derive(Debug)]
pub(super) struct Closing {
    links: Mutex<BTreeMap<Peer, State>>,
    /// To whom links are to be opened now that were asked for before.
    now: UnboundedSender<Peer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Up,
    /// And whether the next link was asked for.
    Ending(bool),
}

/// The state of a request for a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// It is there.
    IsUp,
    /// It is to be opened now.
    Now,
    /// It is notified when it can be opened.
    Later,
}

impl Closing {
    pub(super) fn new() -> (Arc<Self>, UnboundedReceiver<Peer>) {
        let (now, asked) = unbounded_channel();
        (Arc::new(Self { links: Mutex::default(), now }), asked)
    }

    fn links(&self) -> MutexGuard<'_, BTreeMap<Peer, State>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is a link to that peer.
    pub(super) fn up(&self, peer: Peer) {
        self.links().insert(peer, State::Up);
    }

    /// The link to that peer was dropped.
    pub(super) fn begin(&self, peer: Peer) {
        self.links().insert(peer, State::Ending(false));
    }

    /// A link to that peer is asked for.
    pub(super) fn asks(&self, peer: Peer) -> Asked {
        match self.links().get_mut(&peer) {
            None => Asked::Now,
            Some(State::Up) => Asked::IsUp,
            Some(State::Ending(is_asked)) => {
                *is_asked = true;
                Asked::Later
            }
        }
    }

    /// The dropped link has ended.
    pub(super) fn end(&self, peer: Peer) {
        if self.links().remove(&peer) == Some(State::Ending(true)) {
            // Without its network none is needed.
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
        assert_eq!(closing.asks(Peer(1)), Asked::Now);
        closing.up(Peer(1));
        assert_eq!(closing.asks(Peer(1)), Asked::IsUp);
        closing.begin(Peer(1));
        assert_eq!([1, 1, 2].map(|peer| closing.asks(Peer(peer))), [Asked::Later, Asked::Later, Asked::Now]);
        assert!(now.try_recv().is_err());
        closing.end(Peer(1));
        assert_eq!((now.try_recv(), now.try_recv().is_err()), (Ok(Peer(1)), true));
        closing.begin(Peer(1));
        closing.end(Peer(1));
        assert!(now.try_recv().is_err() && closing.asks(Peer(1)) == Asked::Now);
    }
}
