//! Packets as they are read from an interface: a frame, or many segments of TCP that are handed over as one, and what of
//! those is left when some segments are lost.

use super::tap::HEAD;

/// Bytes of an Ethernet header, behind which IP begins.
const ETHERNET: usize = 14;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the checksum was left out.
const NEEDS_SUM: u8 = 1;

/// `VIRTIO_NET_HDR_GSO_TCPV4` and `…_TCPV6`, and the bit for congestion notification beside them.
const TCP_V4: u8 = 1;
const TCP_V6: u8 = 4;
const NOTIFIES: u8 = 0x80;

/// Flags of TCP: of its last segment, and of its first.
const FIN_AND_PUSH: u8 = 0x01 | 0x08;
const WINDOW_REDUCED: u8 = 0x80;

/// Many segments in one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segments {
    /// Where TCP's header begins, and the data.
    tcp: usize,
    data: usize,
    /// Bytes of data in all but the last.
    size: usize,
    /// How many.
    pub(super) count: usize,
}

impl Segments {
    /// Of a packet with what is said of it; none for one that is a single frame.
    pub(super) fn of(packet: &[u8]) -> Option<Self> {
        let (head, frame) = packet.split_at_checked(HEAD)?;
        let number = |at: usize| usize::from(u16::from_ne_bytes([head[at], head[at + 1]]));
        let (kind, size, tcp) = (head[1] & !NOTIFIES, number(4), number(6));
        if ![TCP_V4, TCP_V6].contains(&kind) || head[0] & NEEDS_SUM == 0 || size == 0 || tcp < ETHERNET + 20 {
            return None;
        }
        let data = tcp + usize::from(*frame.get(tcp + 12)? >> 4) * 4;
        let length = frame.len().checked_sub(data).filter(|length| *length > size)?;
        Some(Self { tcp, data, size, count: length.div_ceil(size) })
    }
}

/// Bytes that a packet has on the wire: a frame for each segment, with a header of its own.
pub(super) fn on_wire(packet: &[u8]) -> u64 {
    let headers = Segments::of(packet).map_or(0, |segments| (segments.count - 1) * segments.data);
    (packet.len() - HEAD + headers) as u64
}

/// What is left of a packet of many segments when some are lost: runs of segments that follow one another, each as a packet.
pub(super) fn without(packet: &[u8], segments: &Segments, is_lost: &[bool]) -> Vec<Vec<u8>> {
    let mut left = Vec::new();
    let mut at = 0;
    for run in is_lost.chunk_by(|one, next| one == next) {
        if !run[0] {
            left.push(cut(packet, segments, at, at + run.len()));
        }
        at += run.len();
    }
    left
}

/// The segments from one to before another, as a packet.
fn cut(packet: &[u8], segments: &Segments, from: usize, to: usize) -> Vec<u8> {
    let Segments { tcp, data, size, count } = *segments;
    let frame = &packet[HEAD..];
    let end = (data + to * size).min(frame.len());
    let mut cut = [&packet[..HEAD + data], &frame[data + from * size..end]].concat();
    let (head, frame) = cut.split_at_mut(HEAD);
    if to - from == 1 {
        // No more segments in one.
        head[1] = 0;
        head[4..6].fill(0);
    }
    let number = u32::from_be_bytes([frame[tcp + 4], frame[tcp + 5], frame[tcp + 6], frame[tcp + 7]]);
    let number = number.wrapping_add((from * size) as u32);
    frame[tcp + 4..tcp + 8].copy_from_slice(&number.to_be_bytes());
    if to < count {
        frame[tcp + 13] &= !FIN_AND_PUSH;
    }
    if from > 0 {
        frame[tcp + 13] &= !WINDOW_REDUCED;
    }
    let long = frame.len() - tcp;
    let is_v4 = frame[ETHERNET] >> 4 == 4;
    let addresses = if is_v4 {
        let ip = &mut frame[ETHERNET..tcp];
        let (length, id) = ((ip.len() + long) as u16, u16::from_be_bytes([ip[4], ip[5]]));
        ip[2..4].copy_from_slice(&length.to_be_bytes());
        ip[4..6].copy_from_slice(&id.wrapping_add(from as u16).to_be_bytes());
        ip[10..12].fill(0);
        let sum = !sum(ip, 0);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        ETHERNET + 12..ETHERNET + 20
    } else {
        let length = (frame.len() - ETHERNET - 40) as u16;
        frame[ETHERNET + 4..ETHERNET + 6].copy_from_slice(&length.to_be_bytes());
        ETHERNET + 8..ETHERNET + 40
    };
    // Who adds the checksum begins with that of the addresses, the protocol (6) and the length.
    let begun = sum(&frame[addresses], 6 + long as u32);
    frame[tcp + 16..tcp + 18].copy_from_slice(&begun.to_be_bytes());
    cut
}

/// The sum of the Internet protocols, in ones' complement; of an even number of bytes.
fn sum(bytes: &[u8], begun: u32) -> u16 {
    let words = bytes.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let mut sum = begun + words.sum::<u32>();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A packet of TCP over IPv4 with so many bytes of data in segments of that size, and flags FIN, PSH and CWR.
    fn packet(length: usize, size: u16) -> Vec<u8> {
        let mut packet = vec![0; HEAD + ETHERNET + 20 + 32];
        packet[0] = NEEDS_SUM;
        packet[1] = TCP_V4 | NOTIFIES;
        packet[4..6].copy_from_slice(&size.to_ne_bytes());
        packet[6..8].copy_from_slice(&34u16.to_ne_bytes());
        packet[8..10].copy_from_slice(&16u16.to_ne_bytes());
        let ip = HEAD + ETHERNET;
        packet[ip] = 0x45;
        packet[ip + 2..ip + 4].copy_from_slice(&((52 + length) as u16).to_be_bytes());
        packet[ip + 4..ip + 6].copy_from_slice(&65_530u16.to_be_bytes());
        packet[ip + 9] = 6;
        packet[ip + 12..ip + 20].copy_from_slice(&[10, 77, 0, 1, 10, 77, 0, 2]);
        let tcp = ip + 20;
        packet[tcp + 4..tcp + 8].copy_from_slice(&(u32::MAX - 3000).to_be_bytes());
        packet[tcp + 12] = 8 << 4;
        packet[tcp + 13] = 0x10 | FIN_AND_PUSH | WINDOW_REDUCED;
        packet.extend((0..length).map(|i| (i * 7 % 251) as u8));
        packet
    }

    proptest! {
        /// What is left of the data lies where it lay, in order, and of every header the checks are right.
        #[test]
        fn what_is_not_lost_stays_what_it_was(
            length in 1usize..60_000, size in 500u16..1500, lost in prop::collection::vec(any::<bool>(), 120),
        ) {
            let packet = packet(length, size);
            let Some(segments) = Segments::of(&packet) else {
                prop_assert!(length <= size.into());
                return Ok(());
            };
            prop_assert_eq!(segments.count, length.div_ceil(size.into()));
            let is_lost = &lost[..segments.count];
            let mut expected: Vec<usize> = (0..segments.count).filter(|i| !is_lost[*i]).collect();
            expected.reverse();
            for cut in without(&packet, &segments, is_lost) {
                let frame = &cut[HEAD..];
                let ip = &frame[ETHERNET..34];
                prop_assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), frame.len() - ETHERNET);
                prop_assert_eq!(sum(ip, 0), 0xffff, "the checksum of IP");
                let number = u32::from_be_bytes([frame[38], frame[39], frame[40], frame[41]]);
                let from = number.wrapping_sub(u32::MAX - 3000) as usize;
                let first = from / usize::from(size);
                prop_assert_eq!(usize::from(u16::from_be_bytes([ip[4], ip[5]]).wrapping_sub(65_530)), first);
                let data = &frame[66..];
                prop_assert_eq!(data, &packet[HEAD + 66..][from..from + data.len()]);
                let count = data.len().div_ceil(size.into());
                for segment in first..first + count {
                    prop_assert_eq!(expected.pop(), Some(segment));
                }
                prop_assert_eq!(Segments::of(&cut).map_or(1, |segments| segments.count), count);
                prop_assert_eq!(frame[47] & FIN_AND_PUSH != 0, first + count == segments.count);
                prop_assert_eq!(frame[47] & WINDOW_REDUCED != 0, first == 0);
                let begun = sum(&[10, 77, 0, 1, 10, 77, 0, 2, 0, 6], (frame.len() - 34) as u32);
                prop_assert_eq!(u16::from_be_bytes([frame[50], frame[51]]), begun);
            }
            prop_assert!(expected.is_empty());
        }

        #[test]
        fn any_bytes_are_a_packet(bytes in prop::collection::vec(any::<u8>(), HEAD..200)) {
            if let Some(segments) = Segments::of(&bytes) {
                prop_assert!(segments.count > 1);
            }
            on_wire(&bytes);
        }
    }

    #[test]
    fn every_segment_has_headers_on_the_wire() {
        assert_eq!(on_wire(&packet(1448, 1448)), 1514);
        assert_eq!(on_wire(&packet(3 * 1448 + 1, 1448)), 3 * 1514 + 67);
    }
}
