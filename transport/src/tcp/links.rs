//! Which peers we are linked to, and who of two that dial each other at once gives way.
//!
//! The lower-numbered peer's connection is kept. An acceptor decides in one place, after the caller's proof and
//! before the verdict: it takes the caller unless it holds a link to that peer already, or has said hello to it
//! and is the lower of the two; then it answers that it is busy. A dialler that is told so looks whether the
//! other connection came, and dials again if it did not. Merely connecting is not yet saying hello, so a peer
//! whose own packets are dropped by a firewall can still be reached from the other side.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Peer;

/// Where our own attempt to reach a peer stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Dial {
    /// There is none.
    #[default]
    Idle,
    /// Connecting, or waiting to try again: the peer has heard nothing that it could accept.
    Knocking,
    /// The hello is out, and the peer may be taking it for a link this moment.
    Speaking,
}

/// Whether a connection is taken for the link to a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Taken {
    /// None is.
    #[default]
    No,
    /// A caller's, whose verdict is on its way; and whether a link was asked for since.
    Offered { wanted: bool },
    /// Yes, until both halves of the link are dropped.
    Yes,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    dial: Dial,
    taken: Taken,
}

/// The links of one worker, by peer.
#[derive(Debug)]
pub(super) struct Links {
    us: Peer,
    slots: Mutex<Vec<Slot>>,
}

/// What a dialler should do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Go on.
    Go,
    /// Wait: a caller's connection may become the link.
    Wait,
    /// Stop: the link is there.
    Done,
}

/// Keeps a peer's place taken; dropping it frees the place.
#[derive(Debug)]
pub(super) struct Hold {
    links: Arc<Links>,
    peer: Peer,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.links.slots()[self.peer.0 as usize].taken = Taken::No;
    }
}

impl Links {
    pub(super) fn new(us: Peer, workers: u32) -> Arc<Self> {
        Arc::new(Links { us, slots: Mutex::new(vec![Slot::default(); workers as usize]) })
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold(self: &Arc<Self>, peer: Peer) -> Hold {
        Hold { links: Arc::clone(self), peer }
    }

    /// Asks for a link. Says whether to start dialling; if so, the dialling ends with
    /// [`Turn::Done`], [`Links::welcomed`] or [`Links::rest`], whichever comes first.
    pub(super) fn want(&self, peer: Peer) -> bool {
        let slot = &mut self.slots()[peer.0 as usize];
        match (slot.taken, slot.dial) {
            (Taken::No, Dial::Idle) => {
                slot.dial = Dial::Knocking;
                true
            }
            (Taken::Offered { .. }, Dial::Idle) => {
                slot.taken = Taken::Offered { wanted: true };
                false
            }
            _ => false,
        }
    }

    /// A dialler asks whether to go on, before it connects and again before it says hello. The answer
    /// [`Turn::Done`] ends its attempt.
    pub(super) fn turn(&self, peer: Peer, next: Dial) -> Turn {
        let slot = &mut self.slots()[peer.0 as usize];
        let (dial, turn) = match slot.taken {
            Taken::No => (next, Turn::Go),
            Taken::Offered { .. } => (Dial::Knocking, Turn::Wait),
            Taken::Yes => (Dial::Idle, Turn::Done),
        };
        slot.dial = dial;
        turn
    }

    /// A dialler's attempt came to nothing, and it will try again.
    pub(super) fn knock(&self, peer: Peer) {
        self.slots()[peer.0 as usize].dial = Dial::Knocking;
    }

    /// A dialler gives up. Says whether the peer is without a link, which is worth telling.
    pub(super) fn rest(&self, peer: Peer) -> bool {
        let slot = &mut self.slots()[peer.0 as usize];
        slot.dial = Dial::Idle;
        match &mut slot.taken {
            Taken::No => true,
            // The offer stands for what was asked; should it fall through, the asking is taken up again.
            Taken::Offered { wanted } => {
                *wanted = true;
                false
            }
            Taken::Yes => false,
        }
    }

    /// A dialler was welcomed. None if another connection has become the link meanwhile.
    pub(super) fn welcomed(self: &Arc<Self>, peer: Peer) -> Option<Hold> {
        let slot = &mut self.slots()[peer.0 as usize];
        slot.dial = Dial::Idle;
        if slot.taken != Taken::No {
            return None;
        }
        slot.taken = Taken::Yes;
        Some(self.hold(peer))
    }

    /// A caller has proved itself. None if it must be told that we are busy.
    pub(super) fn offer(self: &Arc<Self>, peer: Peer) -> Option<Hold> {
        let slot = &mut self.slots()[peer.0 as usize];
        if slot.taken != Taken::No || (slot.dial == Dial::Speaking && self.us < peer) {
            return None;
        }
        slot.taken = Taken::Offered { wanted: false };
        Some(self.hold(peer))
    }

    /// The verdict went out: what was offered is the link.
    pub(super) fn settle(&self, peer: Peer) {
        self.slots()[peer.0 as usize].taken = Taken::Yes;
    }

    /// The verdict did not go out. Says whether a link was asked for meanwhile.
    pub(super) fn withdraw(&self, hold: Hold) -> bool {
        let wanted = self.slots()[hold.peer.0 as usize].taken == Taken::Offered { wanted: true };
        drop(hold);
        wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Peer = Peer(1);
    const TWO: Peer = Peer(2);

    #[test]
    fn of_two_that_dial_each_other_the_lower_is_taken() {
        let (one, two) = (Links::new(ONE, 3), Links::new(TWO, 3));
        assert!(one.want(TWO) && two.want(ONE));
        assert!(!one.want(TWO), "dials already");
        assert_eq!(one.turn(TWO, Dial::Speaking), Turn::Go);
        assert_eq!(two.turn(ONE, Dial::Speaking), Turn::Go);
        assert!(one.offer(TWO).is_none(), "rank 1 takes its own connection");
        let called = two.offer(ONE).unwrap();
        assert_eq!(two.turn(ONE, Dial::Knocking), Turn::Wait);
        two.settle(ONE);
        assert_eq!(two.turn(ONE, Dial::Knocking), Turn::Done);
        let dialled = one.welcomed(TWO).unwrap();
        assert!(!one.want(TWO) && !two.want(ONE));
        drop((called, dialled));
        assert!(one.want(TWO) && two.want(ONE));
    }

    #[test]
    fn the_lower_takes_a_caller_while_it_has_not_said_hello() {
        let one = Links::new(ONE, 3);
        assert!(one.want(TWO));
        assert_eq!(one.turn(TWO, Dial::Knocking), Turn::Go);
        let _hold = one.offer(TWO).unwrap();
        one.settle(TWO);
        assert_eq!(one.turn(TWO, Dial::Speaking), Turn::Done);
        assert!(one.offer(TWO).is_none(), "one link at a time");
    }

    #[test]
    fn what_was_asked_for_during_an_offer_that_fell_through_is_taken_up_again() {
        let two = Links::new(TWO, 3);
        let hold = two.offer(ONE).unwrap();
        assert!(!two.want(ONE));
        assert!(two.withdraw(hold));
        let hold = two.offer(ONE).unwrap();
        assert!(!two.withdraw(hold));
        assert!(two.want(ONE));
        let hold = two.offer(ONE).unwrap();
        assert!(!two.rest(ONE), "nothing to tell while an offer stands");
        assert!(two.withdraw(hold));
        assert!(two.want(ONE));
        assert!(two.rest(ONE));
    }
}
