//! Which peers we are linked to, and who of two that dial each other at once gives way.
//!
//! The lower-numbered peer's connection is kept. An acceptor decides in one place, after the caller's proof and
//! before the admission: it takes the caller unless it holds a link to that peer already, or has said hello to it
//! and is the lower of the two; then it answers that it is busy. A dialler that gets this answer looks whether the
//! other connection came, and dials again if it did not. One that is welcomed takes the link in the same place, or
//! leaves where a caller's connection was the link meanwhile; the acceptor's is up once it was taken, since a hello may
//! be answered after the link that ended its dialling has come and gone. Merely connecting is not yet saying hello, so a peer
//! whose own packets are dropped by a firewall can still be reached from the other side.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Peer;

/// Where our own attempt to reach a peer stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Dial {
    /// There is none.
    #[default]
    Idle,
    /// Connecting, or waiting to try again: the peer has received nothing that it could accept.
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
    /// A caller's, who has not taken it yet; and whether a link was asked for since.
    Offered { wanted: bool },
    /// Yes, until both halves of the link are dropped.
    Yes,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    dial: Dial,
    /// Which dialling that is: one that a link has ended must not open the next.
    dialling: u64,
    taken: Taken,
}

impl Slot {
    fn is_current(&self, dialling: u64) -> bool {
        self.dialling == dialling && self.dial != Dial::Idle
    }

    /// That dialling ends without a link. Says whether there is none otherwise either.
    fn rest(&mut self, dialling: u64) -> bool {
        if !self.is_current(dialling) {
            return false;
        }
        self.dial = Dial::Idle;
        // While an offer is open it may be what was asked for; should it fall through, the asking is taken up again.
        if let Taken::Offered { wanted } = &mut self.taken {
            *wanted = true;
        }
        self.taken == Taken::No
    }
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

    /// Asks for a link. Returns the number of a dialling that is to begin, if one is; it ends with
    /// [`Turn::Done`], [`Links::welcomed`] or [`Links::rest`], whichever comes first.
    pub(super) fn want(&self, peer: Peer) -> Option<u64> {
        let slot = &mut self.slots()[peer.0 as usize];
        match (slot.taken, slot.dial) {
            (Taken::No, Dial::Idle) => {
                slot.dial = Dial::Knocking;
                slot.dialling += 1;
                return Some(slot.dialling);
            }
            (Taken::Offered { .. }, Dial::Idle) => slot.taken = Taken::Offered { wanted: true },
            _ => {}
        }
        None
    }

    /// A dialler asks whether to go on, before it connects and again before it says hello. The answer
    /// [`Turn::Done`] ends its attempt.
    pub(super) fn turn(&self, peer: Peer, dialling: u64, next: Dial) -> Turn {
        let slot = &mut self.slots()[peer.0 as usize];
        if !slot.is_current(dialling) {
            return Turn::Done;
        }
        let (dial, turn) = match slot.taken {
            Taken::No => (next, Turn::Go),
            Taken::Offered { .. } => (Dial::Knocking, Turn::Wait),
            Taken::Yes => (Dial::Idle, Turn::Done),
        };
        slot.dial = dial;
        turn
    }

    /// A dialler's attempt failed, and it will try again.
    pub(super) fn knock(&self, peer: Peer, dialling: u64) {
        let slot = &mut self.slots()[peer.0 as usize];
        if slot.is_current(dialling) {
            slot.dial = Dial::Knocking;
        }
    }

    /// A dialler gives up. Says whether the peer is without a link, which is worth reporting.
    pub(super) fn rest(&self, peer: Peer, dialling: u64) -> bool {
        self.slots()[peer.0 as usize].rest(dialling)
    }

    /// A dialler was welcomed. None if another connection is, was or may become the link meanwhile.
    pub(super) fn welcomed(self: &Arc<Self>, peer: Peer, dialling: u64) -> Option<Hold> {
        let slot = &mut self.slots()[peer.0 as usize];
        if slot.taken != Taken::No || !slot.is_current(dialling) {
            slot.rest(dialling);
            return None;
        }
        (slot.dial, slot.taken) = (Dial::Idle, Taken::Yes);
        Some(self.hold(peer))
    }

    /// A caller has proved itself. None if the answer must be that we are busy.
    pub(super) fn offer(self: &Arc<Self>, peer: Peer) -> Option<Hold> {
        let slot = &mut self.slots()[peer.0 as usize];
        if slot.taken != Taken::No || (slot.dial == Dial::Speaking && self.us < peer) {
            return None;
        }
        slot.taken = Taken::Offered { wanted: false };
        Some(self.hold(peer))
    }

    /// The caller took it: what was offered is the link, and ends our own dialling.
    pub(super) fn confirm(&self, peer: Peer) {
        let slot = &mut self.slots()[peer.0 as usize];
        (slot.dial, slot.taken) = (Dial::Idle, Taken::Yes);
    }

    /// The caller did not take it. Says whether a link was asked for meanwhile.
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
        let (from_one, from_two) = (one.want(TWO).unwrap(), two.want(ONE).unwrap());
        assert!(one.want(TWO).is_none(), "dials already");
        assert_eq!(one.turn(TWO, from_one, Dial::Speaking), Turn::Go);
        assert_eq!(two.turn(ONE, from_two, Dial::Speaking), Turn::Go);
        assert!(one.offer(TWO).is_none(), "rank 1 takes its own connection");
        let called = two.offer(ONE).unwrap();
        assert_eq!(two.turn(ONE, from_two, Dial::Knocking), Turn::Wait);
        two.confirm(ONE);
        assert_eq!(two.turn(ONE, from_two, Dial::Knocking), Turn::Done);
        let dialled = one.welcomed(TWO, from_one).unwrap();
        assert!(one.want(TWO).is_none() && two.want(ONE).is_none());
        drop((called, dialled));
        assert!(one.want(TWO).is_some() && two.want(ONE).is_some());
    }

    #[test]
    fn the_lower_takes_a_caller_while_it_has_not_said_hello() {
        let one = Links::new(ONE, 3);
        let dialling = one.want(TWO).unwrap();
        assert_eq!(one.turn(TWO, dialling, Dial::Knocking), Turn::Go);
        let _hold = one.offer(TWO).unwrap();
        one.confirm(TWO);
        assert_eq!(one.turn(TWO, dialling, Dial::Speaking), Turn::Done);
        assert!(one.offer(TWO).is_none(), "one link at a time");
    }

    /// What was asked for came by the other side's dialling, and went: that was the link.
    #[test]
    fn a_link_that_came_and_went_ends_the_dialling_for_it() {
        let two = Links::new(TWO, 3);
        let first = two.want(ONE).unwrap();
        assert_eq!(two.turn(ONE, first, Dial::Speaking), Turn::Go);
        let hold = two.offer(ONE).unwrap();
        two.confirm(ONE);
        drop(hold);
        two.knock(ONE, first);
        assert_eq!(two.turn(ONE, first, Dial::Knocking), Turn::Done);
        assert!(two.welcomed(ONE, first).is_none(), "no link is asked for");
        let second = two.want(ONE).unwrap();
        assert!(two.welcomed(ONE, first).is_none(), "it is dialled for again");
        assert_eq!(two.turn(ONE, first, Dial::Knocking), Turn::Done);
        assert!(!two.rest(ONE, first), "its end is of no interest");
        assert_eq!(two.turn(ONE, second, Dial::Knocking), Turn::Go);
    }

    #[test]
    fn what_was_asked_for_during_an_offer_that_fell_through_is_taken_up_again() {
        let two = Links::new(TWO, 3);
        let hold = two.offer(ONE).unwrap();
        assert!(two.want(ONE).is_none());
        assert!(two.withdraw(hold));
        let hold = two.offer(ONE).unwrap();
        assert!(!two.withdraw(hold));
        let first = two.want(ONE).unwrap();
        let hold = two.offer(ONE).unwrap();
        assert!(!two.rest(ONE, first), "nothing to report while an offer is open");
        assert!(two.withdraw(hold));
        let second = two.want(ONE).unwrap();
        let hold = two.offer(ONE).unwrap();
        assert!(two.welcomed(ONE, second).is_none());
        assert!(two.withdraw(hold));
        let third = two.want(ONE).unwrap();
        assert!(two.rest(ONE, third));
    }
}
