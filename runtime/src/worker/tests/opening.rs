//! A rank whose peers have left but for one, which falls silent, opens links to others to report it.

use super::*;

/// Rank 0, the coordinator, was stopped while all leave. Rank 1 misses a message of it, and has links to ranks 0 and 2 alone; rank 2 has left.
/// What rank 1 concludes, where rank 2 sent it heartbeats until this tick, and where this happens to the link to rank 3.
fn named(heard: u32, opened: Option<&(u32, Event)>) -> Option<u32> {
    let start = Instant::now();
    let mut worker = Worker::new(1, role_map(4), 0, TIMEOUT);
    for peer in [Peer(0), Peer(2)] {
        worker.handle(Event::Up(peer), start);
    }
    worker.handle(Event::Left(Peer(2)), start);
    let (mut silent, mut failed) = (false, None);
    for tick in 1..60 {
        let now = start + tick * TIMEOUT / 24;
        if tick <= heard {
            worker.hear(Peer(2), now);
        }
        if tick == heard {
            worker.handle(Event::Ended(Peer(2)), now);
        }
        if let Some((when, event)) = opened.filter(|(when, _)| *when == tick) {
            assert!(silent && failed.is_none(), "tick {when} is too early or too late");
            worker.handle(event.clone(), now);
        }
        worker.tick(now);
        for action in worker.actions() {
            match action {
                // The link is opened by that.
                Action::Send(Peer(3), Topic::Silence, _) => {
                    silent = true;
                    worker.handle(Event::Reached(Peer(3)), now);
                }
                Action::Report(failure) => failed = Some(failure.rank),
                _ => {}
            }
        }
    }
    assert!(silent, "it reports to rank 3");
    failed
}

#[test]
fn a_rank_that_heard_one_which_left_was_not_cut_off() {
    assert_eq!(named(20, None), Some(0));
}

/// Rank 2 left long ago.
#[test]
fn a_link_that_is_being_opened_shows_whether_a_rank_was_cut_off() {
    let up = Event::Up(Peer(3));
    let refused = Event::Broken(Peer(3), "nothing listens there".into());
    for event in [up, refused] {
        // After three times the moment that a decision takes, and within a quarter of the timeout after that.
        assert_eq!(named(1, Some(&(37, event.clone()))), Some(0), "{event:?}");
    }
    assert_eq!(named(1, None), Some(1), "it failed");
}

/// Rank 0 receives heartbeats from rank 2 while it opens a link to another, and says at once what it concludes.
#[test]
fn a_rank_that_hears_a_peer_does_not_wait_for_links() {
    let start = Instant::now();
    let mut worker = Worker::new(0, role_map(4), 0, TIMEOUT);
    for peer in [Peer(1), Peer(2)] {
        worker.handle(Event::Up(peer), start);
    }
    worker.handle(Event::Left(Peer(1)), start);
    worker.handle(Event::Reached(Peer(3)), start);
    worker.hear(Peer(2), start + TIMEOUT);
    let silence = Silence { at: 1, from: 3 };
    worker.silence = Some((vec![silence], start + TIMEOUT));
    assert_eq!(worker.concludes(), Some(start + TIMEOUT));
    // Were rank 2 silent, it would wait for rank 3.
    worker.ties.get_mut(&Peer(2)).unwrap().is_silent = true;
    assert!(worker.concludes() > Some(start + TIMEOUT));
}
