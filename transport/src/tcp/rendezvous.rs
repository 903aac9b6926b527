//! How workers that know nothing but the address of rank 0 find each other.
//!
//! Each tells rank 0 its own listening port; rank 0 adds the address it sees it call from and, once all have
//! come, sends everyone the table. If anything goes wrong first, it sends everyone the reason instead.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::door::{Caller, Door};
use super::error::{JoinError, listed};
use super::handshake::{HandshakeError, Identity, Visitor, greet};
use super::wire::{HEADER, Header, JOIN, Outcome, Place, Verdict, WireError};
use super::{TcpConfig, bind};
use crate::{LinkEvent, Peer, Tag};

/// Times that a guest which was closed without an answer tries again before it says that the secrets differ.
const ATTEMPTS: u32 = 3;
/// How long rank 0 waits, once the outcome is known, until it was written to everyone.
const TELLING: Duration = Duration::from_secs(2);
/// How much longer than its own time-out a guest that came in waits for rank 0 to end the waiting.
const GRACE: Duration = Duration::from_secs(5);

/// What a rendezvous leaves behind.
pub(super) struct Met {
    pub(super) door: Door,
    /// Where each peer listens, by number; nothing for oneself, and for rank 0 where it was dialled.
    pub(super) places: Vec<Option<SocketAddr>>,
    /// The connections that are links from here on.
    pub(super) streams: Vec<(Peer, TcpStream)>,
}

/// How the waiting of one guest ended.
enum Waited {
    Left(Peer),
    Told(Peer, TcpStream),
}

/// Peer 0 and whoever has come so far.
struct Party<'a> {
    us: &'a Identity,
    came: BTreeMap<Peer, (SocketAddr, Place)>,
    /// One task for each who came. It waits with the guest for the outcome, and writes it.
    waiting: JoinSet<Waited>,
    outcome: watch::Sender<Option<Bytes>>,
    /// How many were turned away, and the last of them: it may have been one who is missed.
    strangers: u32,
    last_stranger: String,
}

/// Peer 0's part.
pub(super) async fn host(
    config: &TcpConfig,
    us: &Identity,
    mut door: Door,
    events: &mpsc::UnboundedSender<LinkEvent>,
) -> Result<Met, JoinError> {
    let mut party = Party {
        us,
        came: BTreeMap::new(),
        waiting: JoinSet::new(),
        outcome: watch::Sender::new(None),
        strangers: 0,
        last_stranger: String::new(),
    };
    let gathered = tokio::select! {
        gathered = party.gather(&mut door, events) => Some(gathered),
        () = sleep(config.timeout) => None,
    };
    let gathered = gathered.unwrap_or_else(|| Err(party.missing(config.timeout)));
    let outcome = match &gathered {
        Ok(()) => Outcome::Complete(party.came.values().map(|(_, place)| *place).collect()),
        Err(error) => Outcome::Failed(error.to_string()),
    };
    let streams = party.tell(&outcome, &mut door).await;
    gathered?;
    let seen = |(address, place): &(SocketAddr, Place)| Some(seen(*place, address.ip()));
    let places = std::iter::once(None).chain(party.came.values().map(seen)).collect();
    Ok(Met { door, places, streams })
}

impl Party<'_> {
    /// Lets guests in until all have come. Whoever leaves or does not fit ends it: the job was started wrongly.
    async fn gather(
        &mut self,
        door: &mut Door,
        events: &mpsc::UnboundedSender<LinkEvent>,
    ) -> Result<(), JoinError> {
        while (self.came.len() as u32) < self.us.workers - 1 {
            tokio::select! {
                caller = door.callers.recv() => match caller {
                    Some(Caller::Visitor(visitor)) => self.admit(visitor).await?,
                    Some(Caller::Stranger { address, reason }) => {
                        let (address, reason) = (address.to_string(), reason.to_string());
                        self.strangers += 1;
                        self.last_stranger = format!("{address}: {reason}");
                        let _ = events.send(LinkEvent::Refused { address, reason });
                    }
                    None => return Err(JoinError::DoorClosed),
                },
                Some(waited) = self.waiting.join_next() => {
                    if let Ok(Waited::Left(peer)) = waited {
                        let address = self.came.get(&peer).map(|(address, _)| address.to_string());
                        return Err(JoinError::Left {
                            peer,
                            address: address.unwrap_or_default(),
                            present: self.came.len() as u32,
                            workers: self.us.workers,
                        });
                    }
                }
            }
        }
        Ok(())
    }

    async fn admit(&mut self, mut visitor: Visitor) -> Result<(), JoinError> {
        let peer = visitor.hello.from;
        let address = visitor.address;
        let twice = |(first, _): &(SocketAddr, Place)| {
            format!(
                "two workers were started as {peer}, at {first} and at {address}: give every worker its own number"
            )
        };
        if let Some(sentence) = visitor.misfit(self.us).or_else(|| self.came.get(&peer).map(twice)) {
            // Told here, since it is not one of those who wait.
            let _ = visitor.answer(self.us, &Verdict::Refused(sentence.clone())).await;
            return Err(JoinError::Misfit { sentence });
        }
        if visitor.hello.purpose != JOIN {
            let _ = visitor.answer(self.us, &Verdict::Busy).await;
            return Ok(());
        }
        // If it left since its proof, the task that waits with it notices.
        let _ = visitor.answer(self.us, &Verdict::Welcome).await;
        self.came.insert(peer, (address, place(&visitor)));
        self.waiting.spawn(wait(peer, visitor.stream, self.outcome.subscribe()));
        Ok(())
    }

    fn missing(&self, waited: Duration) -> JoinError {
        let missing: Vec<_> =
            (1..self.us.workers).map(Peer).filter(|peer| !self.came.contains_key(peer)).collect();
        let hint = match (self.strangers, &self.last_stranger) {
            (0, _) => String::new(),
            (1, last) => format!("; one caller was turned away, {last}"),
            (count, last) => format!("; {count} callers were turned away, the last from {last}"),
        };
        JoinError::Missing { waited, workers: self.us.workers, named: listed(&missing), missing, hint }
    }

    /// Tells everyone who came, and gives back their connections.
    async fn tell(&mut self, outcome: &Outcome, door: &mut Door) -> Vec<(Peer, TcpStream)> {
        self.outcome.send_replace(Some(frame(outcome)));
        let mut streams = Vec::new();
        let told = async {
            while let Some(waited) = self.waiting.join_next().await {
                if let Ok(Waited::Told(peer, stream)) = waited {
                    streams.push((peer, stream));
                }
            }
        };
        // Whoever cannot be told in time finds its connection closed.
        let _ = timeout(TELLING, told).await;
        if let Outcome::Failed(sentence) = outcome {
            while let Ok(caller) = door.callers.try_recv() {
                if let Caller::Visitor(mut visitor) = caller {
                    let _ = visitor.answer(self.us, &Verdict::Refused(sentence.clone())).await;
                }
            }
        }
        streams
    }
}

/// Where a visitor can be reached by all others, not only from here.
fn place(visitor: &Visitor) -> Place {
    let seen = visitor.address.ip();
    let local = visitor.stream.local_addr().map(|address| address.ip().to_canonical());
    if seen.is_loopback() || local.is_ok_and(|local| local == seen) {
        Place::BesidePeerZero(visitor.hello.port)
    } else {
        Place::At(SocketAddr::new(seen, visitor.hello.port))
    }
}

/// Waits with one guest for the outcome, and notices if it leaves first.
async fn wait(peer: Peer, mut stream: TcpStream, mut outcome: watch::Receiver<Option<Bytes>>) -> Waited {
    let mut byte = [0];
    let known = tokio::select! {
        biased;
        known = outcome.wait_for(Option::is_some) => known.ok().and_then(|known| known.clone()),
        // Guests say nothing until they are told the outcome: whatever comes is the end.
        _ = stream.peek(&mut byte) => return Waited::Left(peer),
    };
    if let Some(frame) = known {
        // A guest that leaves at this moment is a link that closes at once.
        let _ = stream.write_all(&frame).await;
    }
    Waited::Told(peer, stream)
}

fn frame(outcome: &Outcome) -> Bytes {
    let payload = outcome.encode();
    let mut frame = Vec::with_capacity(HEADER + payload.len());
    frame.extend_from_slice(&Header { length: payload.len() as u32, tag: Tag(0) }.encode());
    frame.extend_from_slice(&payload);
    frame.into()
}

/// Every other peer's part.
pub(super) async fn guest(config: &mut TcpConfig, us: &Identity) -> Result<Met, JoinError> {
    let address = config.rendezvous.clone();
    let deadline = Instant::now() + config.timeout;
    let mut door = None;
    let mut silent = 0;
    let mut pause = Duration::from_millis(20);
    let mut last = "nothing answered at all, as when its host is down or a firewall drops packets".to_owned();
    loop {
        match timeout_at(deadline, call(config, us, &mut door)).await {
            Err(_) => break,
            Ok(Ok(stream)) => {
                let host = stream.peer_addr().map_err(|source| JoinError::lost(&address, source))?;
                let door = door.ok_or(JoinError::DoorClosed)?;
                return hear(config, us, stream, host, door).await;
            }
            Ok(Err(Call::Final(error))) => return Err(error),
            Ok(Err(Call::Failed(error))) if error.passes() => {
                silent += 1;
                if silent == ATTEMPTS {
                    let reason = error.to_string();
                    return Err(JoinError::Handshake { peer: us.peer, address, reason });
                }
                last = error.to_string();
            }
            Ok(Err(Call::Failed(error))) => last = error.to_string(),
        }
        if timeout_at(deadline, sleep(pause)).await.is_err() {
            break;
        }
        pause = (pause * 2).min(Duration::from_millis(500));
    }
    Err(JoinError::Unreachable { peer: us.peer, address, after: config.timeout, last })
}

/// An attempt to reach rank 0 failed.
enum Call {
    /// Another may succeed.
    Failed(HandshakeError),
    /// No other will.
    Final(JoinError),
}

/// Dials rank 0 once and introduces this worker.
async fn call(config: &mut TcpConfig, us: &Identity, door: &mut Option<Door>) -> Result<TcpStream, Call> {
    let io = |error| Call::Failed(HandshakeError::Io(error));
    let mut stream = TcpStream::connect(&config.rendezvous).await.map_err(io)?;
    let _ = stream.set_nodelay(true);
    let port = match door {
        Some(door) => door.port,
        None => {
            let local = stream.local_addr().map_err(io)?.ip();
            let listener = bind(config, local, 0).await.map_err(Call::Final)?;
            let failed = |source| Call::Final(JoinError::Bind { address: config.rendezvous.clone(), source });
            door.insert(Door::open(listener, us.clone()).map_err(failed)?).port
        }
    };
    let address = || config.rendezvous.clone();
    match greet(&mut stream, us, Peer(0), JOIN, port).await {
        Ok(Verdict::Welcome) => Ok(stream),
        Ok(Verdict::Busy) => Err(Call::Failed(HandshakeError::Cut)),
        Ok(Verdict::Refused(sentence)) => {
            Err(Call::Final(JoinError::Refused { peer: us.peer, address: address(), sentence }))
        }
        Err(
            error @ (HandshakeError::Impostor
            | HandshakeError::Other { .. }
            | HandshakeError::NoRandomness(_)),
        ) => {
            let (peer, reason) = (us.peer, error.to_string());
            Err(Call::Final(JoinError::Handshake { peer, address: address(), reason }))
        }
        Err(error) => Err(Call::Failed(error)),
    }
}

/// Waits for the outcome, on the connection that then is the link to rank 0.
async fn hear(
    config: &TcpConfig,
    us: &Identity,
    mut stream: TcpStream,
    host: SocketAddr,
    door: Door,
) -> Result<Met, JoinError> {
    let address = &config.rendezvous;
    let wait = config.timeout + GRACE;
    let outcome = match timeout(wait, read_outcome(&mut stream)).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(source)) => return Err(JoinError::lost(address, source)),
        Err(_) => return Err(JoinError::NoOutcome { address: address.clone(), after: wait }),
    };
    let table = match outcome {
        Outcome::Complete(table) => table,
        Outcome::Failed(sentence) => return Err(JoinError::Failed { sentence }),
    };
    if table.len() as u32 != us.workers - 1 {
        let found = WireError::Length { expected: us.workers as usize - 1, found: table.len() };
        return Err(JoinError::lost(address, std::io::Error::other(found)));
    }
    let mut places: Vec<_> =
        std::iter::once(Place::At(host)).chain(table).map(|p| Some(seen(p, host.ip()))).collect();
    places[us.peer.0 as usize] = None;
    Ok(Met { door, places, streams: vec![(Peer(0), stream)] })
}

/// A place as a worker reaches it that reached rank 0 at `host`.
fn seen(place: Place, host: IpAddr) -> SocketAddr {
    match place {
        Place::BesidePeerZero(port) => SocketAddr::new(host, port),
        Place::At(address) => address,
    }
}

pub(super) async fn read_outcome(stream: &mut TcpStream) -> std::io::Result<Outcome> {
    let mut head = [0; HEADER];
    stream.read_exact(&mut head).await?;
    let header = Header::decode(&head).map_err(std::io::Error::other)?;
    let mut payload = vec![0; header.length as usize];
    stream.read_exact(&mut payload).await?;
    Outcome::decode(&payload).map_err(std::io::Error::other)
}
