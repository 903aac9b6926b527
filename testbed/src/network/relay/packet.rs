//! Packets as they are read from an interface: a frame, or many segments of TCP or datagrams of UDP that are handed over as one, and
//! what of those is left when some are lost.

use std::ops::Range;

use super::tap::HEAD;

/// Bytes of an Ethernet header, behind which IP begins.
const ETHERNET: usize = 14;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the checksum was left out.
const NEEDS_SUM: u8 = 1;

/// `VIRTIO_NET_HDR_GSO_TCPV4`, `…_TCPV6` and `…_UDP_L4`, and the bit for congestion notification beside them.
const TCP_V4: u8 = 1;
const TCP_V6: u8 = 4;
const UDP: u8 = 5;
const NOTIFIES: u8 = 0x80;

/// Bytes of UDP's header.
const UDP_HEADER: usize = 8;

/// Flags of TCP: of its last segment, and of its first.
const FIN_AND_PUSH: u8 = 0x01 | 0x08;
const WINDOW_REDUCED: u8 = 0x80;

/// Many segments, or datagrams, in one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segments {
    /// Whether they are datagrams of UDP, and not segments of TCP.
    is_udp: bool,
    /// Where that protocol's header begins, and the data.
    header: usize,
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
        let (kind, size, header) = (head[1] & !NOTIFIES, number(4), number(6));
        let is_known = [TCP_V4, TCP_V6, UDP].contains(&kind);
        if !is_known || head[0] & NEEDS_SUM == 0 || size == 0 || header < ETHERNET + 20 {
            return None;
        }
        let is_udp = kind == UDP;
        let long = if is_udp { UDP_HEADER } else { usize::from(*frame.get(header + 12)? >> 4) * 4 };
        let data = header + long;
        let length = frame.len().checked_sub(data).filter(|length| *length > size)?;
        Some(Self { is_udp, header, data, size, count: length.div_ceil(size) })
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
    let Segments { is_udp, header, data, size, count } = *segments;
    let frame = &packet[HEAD..];
    let end = (data + to * size).min(frame.len());
    let mut cut = [&packet[..HEAD + data], &frame[data + from * size..end]].concat();
    let (head, frame) = cut.split_at_mut(HEAD);
    if to - from == 1 {
        // No more segments in one.
        head[1] = 0;
        head[4..6].fill(0);
    }
    let length = frame.len() - header;
    let addresses = cut_ip(frame, header, from);
    let (protocol, checksum) = if is_udp {
        frame[header + 4..header + 6].copy_from_slice(&(length as u16).to_be_bytes());
        (17, header + 6)
    } else {
        cut_tcp(&mut frame[header..], from * size, to < count);
        (6, header + 16)
    };
    // A checksum begins with that of the addresses, the protocol and the length.
    let begun = sum(&frame[addresses], protocol + length as u32);
    frame[checksum..checksum + 2].copy_from_slice(&begun.to_be_bytes());
    cut
}

/// TCP's header of a packet that begins so many bytes later; whether others come behind it.
fn cut_tcp(tcp: &mut [u8], later: usize, is_followed: bool) {
    let number = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]).wrapping_add(later as u32);
    tcp[4..8].copy_from_slice(&number.to_be_bytes());
    if is_followed {
        tcp[13] &= !FIN_AND_PUSH;
    }
    if later > 0 {
        tcp[13] &= !WINDOW_REDUCED;
    }
}

/// The header of IP, before the other one, of a packet that begins with that segment. Says where its addresses are.
fn cut_ip(frame: &mut [u8], header: usize, from: usize) -> Range<usize> {
    if frame[ETHERNET] >> 4 == 4 {
        let length = (frame.len() - ETHERNET) as u16;
        let ip = &mut frame[ETHERNET..header];
        let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(from as u16);
        ip[2..4].copy_from_slice(&length.to_be_bytes());
        ip[4..6].copy_from_slice(&id.to_be_bytes());
        ip[10..12].fill(0);
        let sum = !sum(ip, 0);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        ETHERNET + 12..ETHERNET + 20
    } else {
        let length = (frame.len() - ETHERNET - 40) as u16;
        frame[ETHERNET + 4..ETHERNET + 6].copy_from_slice(&length.to_be_bytes());
        ETHERNET + 8..ETHERNET + 40
    }
}

/// The sum of the Internet protocols, in ones' complement; of an even number of bytes.
pub(crate) fn sum(bytes: &[u8], begun: u32) -> u16 {
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

    /// A packet of UDP over IPv4 or IPv6 with so many bytes of data in datagrams of that size.
    fn datagrams(is_v4: bool, length: usize, size: u16) -> Vec<u8> {
        let ip = if is_v4 { 20 } else { 40 };
        let mut packet = vec![0; HEAD + ETHERNET + ip + UDP_HEADER];
        packet[..2].copy_from_slice(&[NEEDS_SUM, UDP]);
        packet[4..6].copy_from_slice(&size.to_ne_bytes());
        packet[6..8].copy_from_slice(&((ETHERNET + ip) as u16).to_ne_bytes());
        packet[8..10].copy_from_slice(&6u16.to_ne_bytes());
        packet[HEAD + ETHERNET] = if is_v4 { 0x45 } else { 0x60 };
        packet.extend((0..length).map(|i| (i * 7 % 251) as u8));
        packet
    }

    proptest! {
        /// The same of datagrams: each is one that was sent, whole.
        #[test]
        fn datagrams_that_are_not_lost_stay_what_they_were(
            is_v4 in any::<bool>(), length in 1usize..60_000, size in 500u16..1500, lost in prop::collection::vec(any::<bool>(), 120),
        ) {
            let packet = datagrams(is_v4, length, size);
            let Some(segments) = Segments::of(&packet) else {
                prop_assert!(length <= size.into());
                return Ok(());
            };
            let sent: Vec<&[u8]> = packet[HEAD + segments.data..].chunks(size.into()).collect();
            let is_lost = &lost[..segments.count];
            let mut expected = (0..segments.count).filter(|i| !is_lost[*i]);
            for cut in without(&packet, &segments, is_lost) {
                let frame = &cut[HEAD..];
                let (udp, ip) = (&frame[segments.header..], &frame[ETHERNET..segments.header]);
                prop_assert_eq!(usize::from(u16::from_be_bytes([udp[4], udp[5]])), udp.len());
                let said = if is_v4 { [ip[2], ip[3]] } else { [ip[4], ip[5]] };
                let behind = frame.len() - ETHERNET - if is_v4 { 0 } else { 40 };
                prop_assert_eq!(usize::from(u16::from_be_bytes(said)), behind);
                let addresses = if is_v4 { &ip[12..20] } else { &ip[8..40] };
                prop_assert_eq!(u16::from_be_bytes([udp[6], udp[7]]), sum(addresses, 17 + udp.len() as u32));
                let pieces: Vec<&[u8]> = udp[UDP_HEADER..].chunks(size.into()).collect();
                prop_assert_eq!(Segments::of(&cut).map_or(1, |segments| segments.count), pieces.len());
                for piece in pieces {
                    prop_assert_eq!(piece, sent[expected.next().unwrap()]);
                }
            }
            prop_assert_eq!(expected.next(), None);
        }

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
        assert_eq!(on_wire(&datagrams(true, 10 * 1452, 1452)), 10 * 1494);
    }
}
