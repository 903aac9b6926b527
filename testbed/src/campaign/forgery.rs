//! Bytes that are changed on their way to a worker.
//!
//! A connection of the worker's is watched on its host. As soon as the host says which byte it expects next, other bytes are sent
//! to it in the peer's name. If they are faster than the peer's, TCP takes them and drops as many of the peer's.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use crate::network::{Node, sum, within};
use crate::ongoing::Ongoing;

/// What is sent in the peer's place.
const FORGED: [u8; 4] = [0xa5; 4];

/// All protocols, as a packet socket asks for them.
const ALL: u16 = 3;

/// A raw socket on which IP headers are written by who sends.
const RAW: i32 = 255;

/// TCP and its flags.
const TCP: u8 = 6;
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const PUSH: u8 = 8;
const ACK: u8 = 16;

/// How often it is asked whether the job is over.
const LOOK: Duration = Duration::from_millis(10);

/// The outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forged {
    /// The ranks in whose names bytes were sent: more than one if a connection ended and another was chosen.
    pub peers: Vec<u32>,
    /// Whether it was seen that the worker's host took the bytes.
    pub was_taken: bool,
}

/// Begins to change what a host receives; the bytes come from another namespace. The addresses are those of all ranks.
pub fn start(host: &Node, outside: &Node, ranks: Vec<Ipv4Addr>) -> Result<Ongoing<Forged>, String> {
    let all = Protocol::from(i32::from(ALL.to_be()));
    let watch = within(&host.namespace, || {
        let watch = Socket::new(Domain::PACKET, Type::DGRAM, Some(all))?;
        watch.set_read_timeout(Some(LOOK)).map(|()| watch)
    })?;
    let raw = Some(Protocol::from(RAW));
    let send = within(&outside.namespace, || Socket::new(Domain::IPV4, Type::RAW, raw))?;
    let address = host.address;
    Ok(Ongoing::start(move |over| forge(watch, &send, address, &ranks, over)))
}

fn forge(
    mut watch: Socket,
    send: &Socket,
    address: Ipv4Addr,
    ranks: &[Ipv4Addr],
    over: &AtomicBool,
) -> Forged {
    let mut forged = Forged::default();
    // The connection, and what its end expects when it has taken the bytes.
    let mut chosen: Option<([u8; 8], u32)> = None;
    let mut packet = [0; 128];
    while !over.load(Ordering::Relaxed) {
        // Nothing came within the time.
        let Ok(length) = watch.read(&mut packet) else { continue };
        let Some(segment) = Segment::of(&packet[..length]).filter(|one| one.from == address) else {
            continue;
        };
        let Some(peer) = ranks.iter().position(|&rank| rank == segment.to && rank != address) else {
            continue;
        };
        if chosen.is_some_and(|(ends, _)| ends != segment.ends) {
            continue;
        }
        if chosen.is_some_and(|(_, taken)| taken == segment.expects) {
            forged.was_taken = true;
            break;
        }
        let to = SocketAddr::from((address, 0)).into();
        if segment.ends_connection {
            chosen = None;
        } else if send.send_to(&segment.forged_answer(), &to).is_ok() {
            chosen = Some((segment.ends, segment.expects.wrapping_add(FORGED.len() as u32)));
            forged.peers.push(peer as u32);
        }
    }
    forged.peers.dedup();
    forged
}

/// What is needed of a segment of an open connection.
struct Segment {
    from: Ipv4Addr,
    to: Ipv4Addr,
    /// The address to which it goes, and the ports: from, to.
    ends: [u8; 8],
    sequence: u32,
    /// Which byte its sender expects next.
    expects: u32,
    window: [u8; 2],
    ends_connection: bool,
}

impl Segment {
    fn of(packet: &[u8]) -> Option<Self> {
        let first = *packet.first()?;
        let tcp = packet.get(usize::from(first & 15) * 4..).filter(|tcp| tcp.len() >= 20)?;
        let flags = tcp[13];
        if first >> 4 != 4 || packet[9] != TCP || flags & ACK == 0 || flags & SYN != 0 {
            return None;
        }
        let four = |bytes: &[u8], at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        let [a, b, c, d] = four(packet, 16);
        let [e, f, g, h] = four(tcp, 0);
        Some(Self {
            from: four(packet, 12).into(),
            to: [a, b, c, d].into(),
            ends: [a, b, c, d, e, f, g, h],
            sequence: u32::from_be_bytes(four(tcp, 4)),
            expects: u32::from_be_bytes(four(tcp, 8)),
            window: [tcp[14], tcp[15]],
            ends_connection: flags & (FIN | RST) != 0,
        })
    }

    /// A packet of the receiver's that seems to bring what its sender expects next. The kernel writes the length and the
    /// checksum of its IP header.
    fn forged_answer(&self) -> Vec<u8> {
        let [.., a, b, c, d] = self.ends;
        let mut tcp = vec![c, d, a, b];
        tcp.extend(self.expects.to_be_bytes());
        // It acknowledges nothing that is new.
        tcp.extend(self.sequence.to_be_bytes());
        tcp.extend([5 << 4, PUSH | ACK, self.window[0], self.window[1], 0, 0, 0, 0]);
        tcp.extend(FORGED);
        let addresses = [self.to.octets(), self.from.octets()].concat();
        let pseudo = [&addresses[..], &[0, TCP, 0, tcp.len() as u8], &tcp[..]].concat();
        tcp[16..18].copy_from_slice(&(!sum(&pseudo, 0)).to_be_bytes());
        [&[0x45, 0, 0, 0, 0, 0, 0, 0, 64, TCP, 0, 0][..], &addresses, &tcp].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A segment from 10.77.0.1:5100 to 10.77.0.2:40000.
    #[test]
    fn an_answer_is_of_the_same_connection_and_has_a_right_checksum() {
        let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, TCP, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2];
        packet.extend([0x13, 0xec, 0x9c, 0x40, 0, 0, 0, 9, 0, 0, 1, 0, 0x50, ACK, 1, 2, 0, 0, 0, 0]);
        let segment = Segment::of(&packet).unwrap();
        assert_eq!((segment.sequence, segment.expects, segment.ends_connection), (9, 256, false));
        let answer = segment.forged_answer();
        assert_eq!(answer[12..20], [10, 77, 0, 2, 10, 77, 0, 1]);
        assert_eq!(answer[20..32], [0x9c, 0x40, 0x13, 0xec, 0, 0, 1, 0, 0, 0, 0, 9]);
        assert_eq!(answer[40..], FORGED);
        // With its checksum, the sum of the pseudo header's and the segment's words is that of none.
        let words = answer[12..].chunks_exact(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(pair[1]));
        let sum = words.sum::<u64>() + u64::from(TCP) + 24;
        assert_eq!(sum % 0xffff, 0);
        packet[33] = SYN | ACK;
        assert!(Segment::of(&packet).is_none());
        packet[33] = FIN | ACK;
        assert!(Segment::of(&packet).unwrap().ends_connection && Segment::of(&packet[..30]).is_none());
    }
}
