//! What is written is read, and any bytes are taken.

use std::net::{IpAddr, SocketAddr};

use proptest::prelude::*;

use super::super::wire::*;
use crate::{MAX_CARD, MAX_PAYLOAD, Message, Peer, Tag};

proptest! {
    #[test]
    fn no_decoder_panics_on_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Hello::decode(&bytes);
        let _ = Challenge::decode(&bytes);
        let _ = Admission::sentence(&bytes);
        let _ = Admission::decode(&bytes);
        let _ = Header::decode(&bytes);
        let _ = Outcome::decode(&bytes);
        let _ = Place::decode(&bytes);
        let _ = Asked::decode(&bytes);
        let _ = Cards::decode(&bytes);
    }

    #[test]
    fn no_decoder_panics_on_bytes_of_the_right_length(bytes in proptest::collection::vec(any::<u8>(), 96)) {
        prop_assert!(Hello::decode(&bytes[..HELLO]).is_ok());
        prop_assert!(Challenge::decode(&bytes[..CHALLENGE]).is_ok());
        let _ = Header::decode(&bytes[..HEADER]);
    }

    /// A wrong length would let the link wait for what never comes; so would a wrong tag.
    #[test]
    fn a_changed_bit_is_found(payload in proptest::collection::vec(any::<u8>(), 0..99), tag in any::<u64>(), bit in any::<usize>()) {
        let message = Message { tag: Tag(tag), payload: payload.clone().into() };
        let header = Header::of(&message, Some(3));
        prop_assert_eq!(header.check(&payload, 3), Ok(()));
        let mut changed = [&header.encode()[..], &payload].concat();
        let bit = bit % (8 * changed.len());
        changed[bit / 8] ^= 1 << (bit % 8);
        let (head, payload) = changed.split_at(HEADER);
        prop_assert!(Header::decode(head).and_then(|header| header.check(payload, 3)).is_err());
    }

    /// A header has eleven bits to check itself. What they let pass is found with the payload.
    #[test]
    fn a_header_that_passes_its_own_check_is_found_with_its_payload(
        payload in proptest::collection::vec(any::<u8>(), 0..99), tag in any::<u64>(), bit in 0..64u32, number in any::<u64>(),
    ) {
        let header = Header::of(&Message { tag: Tag(tag), payload: payload.clone().into() }, Some(number));
        let tagged = Header { tag: Tag(tag ^ (1u64 << bit)), ..header };
        let longer = Header { length: header.length ^ (1u32 << (bit % 21)), ..header };
        prop_assert!(tagged.check(&payload, number).is_err() && longer.check(&payload, number).is_err());
        prop_assert!(header.check(&payload, number ^ (1 << bit)).is_err(), "another message of the link");
    }

    #[test]
    fn what_is_written_is_read(
        numbers in proptest::array::uniform6(any::<u32>()), (port, epoch) in any::<(u16, u16)>(), is_plain in any::<bool>(), bytes in any::<[u8; 32]>(), [transport, sockets, socket] in any::<[u8; 3]>(),
        length in 0..=MAX_PAYLOAD as u32, tag in any::<u64>(), sentence in ".{0,200}",
    ) {
        let [version, purpose, from, to, workers, timeout] = numbers;
        let (from, to) = (Peer(from), Peer(to));
        let hello = Hello { version, purpose, from, to, workers, port, epoch, is_plain, transport, sockets, socket, timeout };
        prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        let challenge = Challenge { version, from };
        prop_assert_eq!(Challenge::decode(&challenge.encode()), Ok(challenge));
        let header = Header { length, tag: Tag(tag), sum: version };
        prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
        for admission in [Admission::Welcome, Admission::Busy, Admission::Refused(sentence.clone())] {
            prop_assert_eq!(Admission::decode(&admission.encode()), Ok(admission));
        }
        let ip = IpAddr::V6(bytes[..16].try_into().map(<[u8; 16]>::into).unwrap()).to_canonical();
        let there = Place::At(SocketAddr::new(ip, port));
        let mapped = Place::At(SocketAddr::from((workers.to_le_bytes(), port)));
        for place in [Place::BesidePeerZero(port), there, mapped] {
            prop_assert_eq!(Place::decode(&place.encode()), Ok(place));
        }
        for outcome in [Outcome::Complete(Cards(vec![vec![7; 19], Vec::new()])), Outcome::Failed(sentence)] {
            prop_assert_eq!(Outcome::decode(&outcome.encode()), Ok(outcome));
        }
        let asked = Asked(numbers.map(Peer).to_vec());
        prop_assert_eq!(Asked::decode(&asked.encode()), Ok(asked));
        let card = Card { place: there, bytes: bytes.repeat(MAX_CARD / 32).into() };
        prop_assert_eq!(Card::decode(&card.encode()), Ok(card.clone()));
        let cards = Cards(vec![there.encode(), vec![], card.encode()]);
        prop_assert_eq!(Cards::decode(&cards.encode()), Ok(cards));
    }
}

#[test]
fn too_many_and_too_long_cards_are_refused() {
    let asked = Asked(vec![Peer(1); MAX_ASKED + 1]).encode();
    assert!(matches!(Asked::decode(&asked), Err(WireError::Length { .. })));
    assert!(Asked::decode(&asked[4..]).is_ok());
    let card = vec![0; MAX_CARD + 19 + 1];
    assert_eq!(Card::decode(&card), Err(WireError::Card(card.len() as u16)));
    assert_eq!(Card::decode(&card[..18]), Err(WireError::Card(18)));
    assert!(Card::decode(&card[..MAX_CARD + 19]).is_ok());
    assert_eq!(Cards::decode(&Cards(vec![card.clone()]).encode()), Err(WireError::Card(card.len() as u16)));
    assert_eq!(Cards::decode(&[9, 0, 1]), Err(WireError::Card(9)));
}

#[test]
fn a_length_above_the_bound_is_refused() {
    let header = Header { length: MAX_PAYLOAD as u32 + 1, tag: Tag(0), sum: 0 };
    assert_eq!(Header::decode(&header.encode()), Err(WireError::TooLong(MAX_PAYLOAD as u32 + 1)));
}

#[test]
fn a_sentence_too_long_is_cut() {
    let admission = Admission::Refused("x".repeat(5000)).encode();
    assert_eq!(Admission::decode(&admission), Ok(Admission::Refused("x".repeat(MAX_SENTENCE))));
}
