//! From which rate on bytes that move count as a heartbeat.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use gleaner_transport::{LinkError, Peer};

use super::*;

/// A transport over which this many bytes have gone.
#[derive(Clone, Default)]
struct Counted(Arc<Mutex<Moved>>);

impl gleaner_transport::Link for Counted {
    fn peer(&self) -> Peer {
        Peer(1)
    }

    fn moved(&self) -> Moved {
        *self.0.lock().unwrap()
    }

    fn submit(&mut self, _: Message) {}

    fn poll_sent(&mut self, _: &mut Context<'_>) -> Poll<Result<usize, LinkError>> {
        Poll::Pending
    }

    fn poll_received(&mut self, _: &mut Context<'_>) -> Poll<Result<Message, LinkError>> {
        Poll::Pending
    }
}

impl Counted {
    fn moves(&self, sent: u64, received: u64) {
        let mut moved = self.0.lock().unwrap();
        moved.sent += sent;
        moved.received += received;
    }
}

/// Each direction by itself, whatever moved before.
#[test]
fn bytes_count_as_a_heartbeat_from_1024_a_second_on() {
    let (mut now, counted) = (Instant::now(), Counted::default());
    let mut link = Link::new(Waker::noop().clone(), now);
    link.connect(Box::new(counted.clone()));
    counted.moves(1 << 20, 1 << 20);
    assert_eq!(link.moves(now), (true, true));
    for seconds in [0.125, 0.5, 1.0, 30.0] {
        let enough = (1024.0 * seconds) as u64;
        for sent in [0, enough - 1, enough, enough + 1] {
            for received in [0, enough - 1, enough, enough + 1] {
                now += Duration::from_secs_f64(seconds);
                counted.moves(sent, received);
                let expected = (sent >= enough, received >= enough);
                assert_eq!(link.moves(now), expected, "{sent} and {received} bytes in {seconds} s");
            }
        }
    }
    // In no time, nothing is none and one byte is some.
    assert_eq!(link.moves(now), (false, false));
    counted.moves(0, 1);
    assert_eq!(link.moves(now), (false, true));
}
