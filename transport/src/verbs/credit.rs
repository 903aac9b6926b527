//! How much may be on its way to a peer: so many messages, since each takes a receive that the peer has posted, and so many
//! bytes of long ones, since they lie in its ring until it has copied them out.
//!
//! Both ends compute where in the ring each long message lies, from the lengths alone and in the order of sending. So no
//! position comes from a peer, and one that sends more than it may is found out.

use super::{MESSAGES, RING};

/// Slots in the ring begin at multiples of it.
const ALIGNMENT: u64 = 64;

/// A peer sent more than it was let.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overrun;

/// What was freed since the link was opened: the receiver's word to the sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Credit {
    /// Messages that were taken in.
    pub(super) messages: u64,
    /// Up to where the ring is free, counted on from round to round.
    pub(super) position: u64,
}

impl Credit {
    pub(super) const LENGTH: usize = 16;

    pub(super) fn encode(self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[..8].copy_from_slice(&self.messages.to_le_bytes());
        bytes[8..].copy_from_slice(&self.position.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: [u8; Self::LENGTH]) -> Self {
        let [messages, position] = [0, 8].map(|at| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(number)
        });
        Self { messages, position }
    }
}

/// Where a message lies in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    /// Bytes from the beginning of the ring.
    pub(super) offset: u64,
    /// The position behind it.
    end: u64,
}

/// What is on its way, or has come and is not taken in: the same at both ends, but for what is under way between them.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    /// Messages so far, and the position behind the last in the ring.
    used: Credit,
    freed: Credit,
}

impl Window {
    fn has_room(&self) -> bool {
        self.used.messages - self.freed.messages < MESSAGES as u64
    }

    /// The next slot for this many bytes, which lies in one piece: what is left at the end of the ring is passed over.
    fn slot(&self, length: usize) -> Option<Slot> {
        let (size, length) = (RING as u64, (length as u64).next_multiple_of(ALIGNMENT));
        let offset = self.used.position % size;
        let (start, offset) = if offset + length <= size {
            (self.used.position, offset)
        } else {
            (self.used.position - offset + size, 0)
        };
        let end = start + length;
        (length <= size && end - self.freed.position <= size).then_some(Slot { offset, end })
    }

    /// Uses a message, and a slot for this many bytes if it is long.
    fn take(&mut self, long: Option<usize>) -> Option<Option<Slot>> {
        if !self.has_room() {
            return None;
        }
        let slot = match long {
            Some(length) => Some(self.slot(length)?),
            None => None,
        };
        self.used.messages += 1;
        self.used.position = slot.map_or(self.used.position, |slot| slot.end);
        Some(slot)
    }
}

/// The sender's side.
#[derive(Debug, Default)]
pub(super) struct Allowance(Window);

impl Allowance {
    /// Uses a message, and a slot of the peer's ring for this many bytes if it is a long one. None while there is no room.
    pub(super) fn take(&mut self, long: Option<usize>) -> Option<Option<Slot>> {
        self.0.take(long)
    }

    /// The peer has reported what it freed.
    pub(super) fn grant(&mut self, credit: Credit) -> Result<(), Overrun> {
        let Window { used, freed } = &mut self.0;
        let fits = |freed, new, used| (freed..=used).contains(&new);
        if !fits(freed.messages, credit.messages, used.messages)
            || !fits(freed.position, credit.position, used.position)
        {
            return Err(Overrun);
        }
        *freed = credit;
        Ok(())
    }
}

/// The receiver's side.
#[derive(Debug, Default)]
pub(super) struct Taking {
    window: Window,
    granted: Credit,
}

impl Taking {
    /// A message has come, and lies in that slot if it is a long one of this many bytes.
    pub(super) fn come(&mut self, long: Option<usize>) -> Result<Option<Slot>, Overrun> {
        self.window.take(long).ok_or(Overrun)
    }

    /// The first of those that have come was taken in.
    pub(super) fn free(&mut self, slot: Option<Slot>) {
        self.window.freed.messages += 1;
        self.window.freed.position = slot.map_or(self.window.freed.position, |slot| slot.end);
    }

    /// The credit to grant to the peer, once it is much. Granted in so large steps, at most six are on their way at once: each step
    /// needs half of the messages or a quarter of the ring, and the peer uses none of either twice before it has received it.
    pub(super) fn due(&self) -> Option<Credit> {
        let freed = self.window.freed;
        let is_much = freed.messages - self.granted.messages >= MESSAGES as u64 / 2
            || freed.position - self.granted.position >= RING as u64 / 4;
        is_much.then_some(freed)
    }

    /// The grant is on its way to the peer.
    pub(super) fn grant(&mut self, credit: Credit) {
        self.granted = credit;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;
    use crate::MAX_PAYLOAD;
    use crate::verbs::{CREDITS, HEADER};

    #[test]
    fn a_credit_is_read_as_it_was_written() {
        let credit = Credit { messages: 1 << 40 | 7, position: u64::MAX - 3 };
        assert_eq!(Credit::decode(credit.encode()), credit);
    }

    /// A message on its way, or that has come: its length if it is long, and where the sender put it.
    type Sent = (Option<usize>, Option<Slot>);

    fn length() -> impl Strategy<Value = Option<usize>> {
        prop_oneof![
            Just(None),
            (1..=MAX_PAYLOAD).prop_map(|length| Some(HEADER + length)),
            Just(Some(HEADER + MAX_PAYLOAD)),
        ]
    }

    proptest! {
        /// The network delivers, the receiver takes in, and credits arrive in any interleaving.
        #[test]
        fn both_ends_agree_and_nothing_is_overwritten(
            lengths in prop::collection::vec(length(), 1..300),
            order in prop::collection::vec(0..4u8, 1..2000),
        ) {
            let (mut sender, mut receiver) = (Allowance::default(), Taking::default());
            let (mut waiting, mut wire): (VecDeque<_>, VecDeque<Sent>) = (lengths.into(), VecDeque::new());
            let (mut come, mut credits) = (VecDeque::<Sent>::new(), VecDeque::new());
            let mut rounds = order.into_iter().chain((0..4).cycle());
            while !waiting.is_empty() || !wire.is_empty() || !come.is_empty() {
                // Four steps of each kind must do something, or no one ever will.
                match rounds.next().unwrap() {
                    0 => if let Some(&long) = waiting.front() && let Some(slot) = sender.take(long) {
                        waiting.pop_front();
                        let live = wire.iter().chain(&come).filter_map(|(length, slot)| Some((slot.as_ref()?, (*length)?)));
                        for (other, other_length) in live {
                            let Some((slot, length)) = slot.as_ref().zip(long) else { break };
                            let apart = slot.offset + length as u64 <= other.offset
                                || other.offset + other_length as u64 <= slot.offset;
                            prop_assert!(apart, "{slot:?} {length} over {other:?} {other_length}");
                        }
                        wire.push_back((long, slot));
                        prop_assert!(wire.len() + come.len() <= MESSAGES);
                    },
                    1 => if let Some((long, slot)) = wire.pop_front() {
                        prop_assert_eq!(receiver.come(long), Ok(slot));
                        prop_assert!(slot.is_none_or(|slot| slot.offset + long.unwrap() as u64 <= RING as u64));
                        come.push_back((long, slot));
                    },
                    2 => if let Some((_, slot)) = come.pop_front() {
                        receiver.free(slot);
                        if let Some(credit) = receiver.due() {
                            receiver.grant(credit);
                            credits.push_back(credit);
                            prop_assert!(credits.len() <= CREDITS);
                        }
                    },
                    _ => if let Some(credit) = credits.pop_front() {
                        prop_assert_eq!(sender.grant(credit), Ok(()));
                    },
                }
                let can_go_on = !wire.is_empty() || !come.is_empty() || !credits.is_empty()
                    || waiting.front().is_none_or(|&long| Window { ..sender.0 }.take(long).is_some());
                prop_assert!(can_go_on, "nothing is under way, and the sender waits for ever");
            }
        }
    }

    #[test]
    fn a_peer_that_sends_or_grants_more_than_it_may_is_noticed() {
        let mut receiver = Taking::default();
        for _ in 0..MESSAGES {
            receiver.come(None).unwrap();
        }
        assert_eq!(receiver.come(None), Err(Overrun));
        let mut receiver = Taking::default();
        for _ in 0..3 {
            receiver.come(Some(HEADER + MAX_PAYLOAD)).unwrap();
        }
        assert_eq!(receiver.come(Some(HEADER + MAX_PAYLOAD)), Err(Overrun));
        assert_eq!(receiver.come(Some(RING + 1)), Err(Overrun));

        let mut sender = Allowance::default();
        sender.take(Some(100)).unwrap();
        let more = [Credit { messages: 2, position: 0 }, Credit { messages: 1, position: 1 << 20 }];
        assert!(more.into_iter().all(|credit| sender.grant(credit) == Err(Overrun)));
        let all = Credit { messages: 1, position: 128 };
        assert_eq!(sender.grant(all), Ok(()));
        assert_eq!(sender.grant(Credit::default()), Err(Overrun), "what was granted cannot be taken back");
    }
}
