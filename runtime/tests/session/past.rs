//! A worker that says to a parameter server what is past: every rank is told in a sentence.

use std::sync::Arc;
use std::task::{Context, Poll};

use gleaner_algorithms::Method;
use gleaner_runtime::{Error, Roles, Session};
use gleaner_transport::memory::{self, MemoryNetwork};
use gleaner_transport::{Counters, Link, LinkError, LinkEvent, Message, Network, Peer};

use crate::job::{TIMEOUT, gradient};
use crate::servers::{SGD, entries, initial, layout, options, pass, try_give};

/// On this number a worker announces its pushes, in messages that begin with this byte and the step.
const PUSH: u64 = (1 << 28) - (1 << 20);
const KIND: u8 = 2;

/// A network on which a worker says another step than its own from step 3 on.
struct Stale {
    inner: MemoryNetwork,
    says: u64,
}

struct StaleLink {
    inner: Box<dyn Link>,
    says: u64,
}

impl Network for Stale {
    fn peer(&self) -> Peer {
        self.inner.peer()
    }

    fn workers(&self) -> u32 {
        self.inner.workers()
    }

    fn open(&mut self, peer: Peer) {
        self.inner.open(peer);
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<LinkEvent>> {
        self.inner.poll_event(context).map(|event| {
            Some(match event? {
                LinkEvent::Up(inner) => LinkEvent::Up(Box::new(StaleLink { inner, says: self.says })),
                event => event,
            })
        })
    }

    fn counters(&self) -> Arc<Counters> {
        self.inner.counters()
    }
}

impl Link for StaleLink {
    fn peer(&self) -> Peer {
        self.inner.peer()
    }

    fn submit(&mut self, mut message: Message) {
        let number = message.tag.0 >> 24 & ((1 << 28) - 1);
        let is_bag = message.tag.0 >> 60 == 0;
        if is_bag && number == PUSH && message.payload[0] == KIND && message.payload[1] >= 3 {
            let says = [&[KIND][..], &self.says.to_le_bytes(), &message.payload[9..]].concat();
            message.payload = says.into();
        }
        self.inner.submit(message);
    }

    fn poll_sent(&mut self, context: &mut Context<'_>) -> Poll<Result<usize, LinkError>> {
        self.inner.poll_sent(context)
    }

    fn poll_received(&mut self, context: &mut Context<'_>) -> Poll<Result<Message, LinkError>> {
        self.inner.poll_received(context)
    }
}

#[test]
fn a_step_that_is_past_is_refused_on_every_rank() {
    for (synchrony, says) in [("bsp", 1), ("ssp/2", 2), ("asp", 0)] {
        let roles = Roles { servers: 1, ..Roles::default() };
        let work = |session: Session| -> Result<(), Error> {
            if session.is_server() {
                return session.serve();
            }
            let mut replica =
                session.replica(&layout(), &initial(), options(Method::ring(), synchrony, SGD))?;
            for step in 0..100 {
                try_give(&mut replica, &gradient(entries(), session.rank(), step))?;
                replica.step(pass())?;
            }
            replica.flush()
        };
        let said: Vec<String> = std::thread::scope(|scope| {
            let start = |inner: MemoryNetwork| {
                scope.spawn(move || {
                    let session = if inner.peer() == Peer(1) {
                        let network = Stale { inner, says };
                        Session::over_as(async { Ok(network) }, TIMEOUT, roles)
                    } else {
                        Session::over_as(async { Ok(inner) }, TIMEOUT, roles)
                    };
                    work(session.unwrap()).unwrap_err().to_string()
                })
            };
            let threads: Vec<_> = memory::networks(3).into_iter().map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for said in said {
            let expected = format!("it pushes step {says}, and has pushed step 2 last");
            assert!(said.starts_with("rank 1 failed") && said.contains(&expected), "{synchrony}: {said}");
        }
    }
}
