//! What two peers exchange over the authenticated connection before their queue pairs are connected.

use super::device::Port;

/// Each message begins with it. The last number is the version: both must have the same constants.
const MAGIC: [u8; 8] = *b"verbs\0\0\x02";

/// What one side sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Negotiation {
    /// Its end of the link.
    Offer(Offer),
    /// Its queue pair is connected: it receives.
    Ready,
    /// It has none, and says why.
    Refused(String),
}

/// One side's end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) port: Port,
    /// Of the queue pair.
    pub(super) number: u32,
    /// The number of the first packet that it sends.
    pub(super) psn: u32,
    /// Where its ring lies in its memory, and the key by which the peer may write there.
    pub(super) ring: u64,
    pub(super) rkey: u32,
}

/// Bytes of an offer behind the first nine.
const OFFER: usize = 16 + 2 + 1 + 1 + 4 * 3 + 8;

impl Negotiation {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        match self {
            Negotiation::Offer(Offer { port, number, psn, ring, rkey }) => {
                bytes.push(0);
                bytes.extend(port.gid);
                bytes.extend(port.lid.to_le_bytes());
                bytes.push(port.is_ethernet.into());
                bytes.push(port.mtu as u8);
                for word in [number, psn, rkey] {
                    bytes.extend(word.to_le_bytes());
                }
                bytes.extend(ring.to_le_bytes());
            }
            Negotiation::Ready => bytes.push(1),
            Negotiation::Refused(reason) => {
                bytes.push(2);
                bytes.extend(reason.bytes());
            }
        }
        bytes
    }

    /// None if it is invalid.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.strip_prefix(&MAGIC)?.split_first()?;
        match kind {
            0 => Some(Negotiation::Offer(Offer::decode(rest.try_into().ok()?)?)),
            1 => rest.is_empty().then_some(Negotiation::Ready),
            2 => Some(Negotiation::Refused(String::from_utf8_lossy(rest).into_owned())),
            _ => None,
        }
    }
}

impl Offer {
    fn decode(bytes: &[u8; OFFER]) -> Option<Self> {
        let (gid, rest) = bytes.split_first_chunk()?;
        let (lid, rest) = rest.split_first_chunk()?;
        let ([is_ethernet, mtu], rest) = rest.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let (psn, rest) = rest.split_first_chunk()?;
        let (rkey, rest) = rest.split_first_chunk()?;
        let port = Port {
            number: 0,
            gid: *gid,
            gid_index: 0,
            lid: u16::from_le_bytes(*lid),
            is_ethernet: *is_ethernet == 1,
            mtu: (*mtu).into(),
        };
        let is_sane = (1..=5).contains(mtu) && *is_ethernet < 2;
        is_sane.then_some(Self {
            port,
            number: u32::from_le_bytes(*number),
            psn: u32::from_le_bytes(*psn),
            ring: u64::from_le_bytes(rest.try_into().ok()?),
            rkey: u32::from_le_bytes(*rkey),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn offer() -> impl Strategy<Value = Negotiation> {
        let port = (any::<[u8; 16]>(), any::<u16>(), any::<bool>(), 1..=5u32);
        (port, any::<[u32; 3]>(), any::<u64>()).prop_map(
            |((gid, lid, is_ethernet, mtu), [number, psn, rkey], ring)| {
                let port = Port { number: 0, gid, gid_index: 0, lid, is_ethernet, mtu };
                Negotiation::Offer(Offer { port, number, psn, ring, rkey })
            },
        )
    }

    proptest! {
        #[test]
        fn a_word_is_read_as_it_was_written(word in prop_oneof![
            offer(),
            Just(Negotiation::Ready),
            ".{0,99}".prop_map(Negotiation::Refused),
        ]) {
            prop_assert_eq!(Negotiation::decode(&word.encode()), Some(word));
        }

        #[test]
        fn no_bytes_are_too_odd(bytes in prop::collection::vec(any::<u8>(), 0..80), is_ours in any::<bool>()) {
            let bytes = if is_ours { [&MAGIC[..], &bytes].concat() } else { bytes };
            if let Some(Negotiation::Offer(offer)) = Negotiation::decode(&bytes) {
                prop_assert!((1..=5).contains(&offer.port.mtu));
            }
        }
    }
}
