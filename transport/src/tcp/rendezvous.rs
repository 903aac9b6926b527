//! How workers that know nothing but the address of rank 0 find each other.
//!
//! Each sends rank 0 its own listening port; rank 0 adds the address it sees it call from, keeps both as a card, and
//! sends the cards to all once all have come. If anything goes wrong first, it sends everyone the reason instead.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::acceptor::{Acceptor, Caller};
use super::cards::{Known, neighbours, place};
use super::cause::{self, Cause, panicked};
use super::error::{JoinError, listed};
use super::events::Events;
use super::handshake::{HandshakeError, Identity, Member, greet};
use super::stream::{Stream, prepare};
use super::wire::{Admission, Card, Cards, HEADER, Header, JOIN, Outcome, Place, UNLINKED, WireError, frame};
use super::{JoinConfig, bind};
use crate::{LinkEvent, MAX_PAYLOAD, Peer};

/// Times that a participant which was closed without an answer tries again before it says that the secrets differ.
const ATTEMPTS: u32 = 3;
/// How long rank 0 waits, once the outcome is known, until it was written to everyone.
const ANSWERING: Duration = Duration::from_secs(2);
/// How long rank 0 waits for those that got the answer that the job cannot start to leave, which says that they received it.
const LEAVING: Duration = Duration::from_secs(1);
/// How much longer than rank 0 waits, for those in the middle of a handshake too, a participant waits for it to end the waiting.
const GRACE: Duration = Duration::from_secs(5);

/// Of how many that were refused before all had come there is a report, one by one.
const REPORTED: u32 = 16;

/// What is sent to all: the cards of all, by number, or why the job cannot start.
type Answer = Result<Vec<Vec<u8>>, String>;

/// What a rendezvous leaves behind.
pub(super) struct Met {
    pub(super) acceptor: Acceptor,
    /// What is known of each peer, by number: at rank 0 all, and elsewhere where rank 0 was dialled, and the next few.
    pub(super) known: Vec<Known>,
    /// At rank 0 the cards of all, by number.
    pub(super) cards: Vec<Vec<u8>>,
    /// The connections that are links from here on.
    pub(super) streams: Vec<(Peer, Stream)>,
}

/// How the waiting of one participant ended.
enum Waited {
    Left(Peer),
    Answered(Peer, Stream),
    /// It was sent the answer that the job cannot start; and whether it has received it.
    Dismissed(bool),
}

/// Peer 0 and those that have come so far.
struct Participants<'a> {
    us: &'a Identity,
    came: BTreeMap<Peer, (SocketAddr, Card)>,
    /// One task for each who came. It waits with the participant for the outcome, and writes it.
    waiting: JoinSet<Waited>,
    outcome: watch::Sender<Option<Arc<Answer>>>,
    /// How many were refused, and the last of them: it may have been one who is missed.
    turned_away: u32,
    last_turned_away: String,
    /// What the panic said that ended one of the tasks.
    panicked: Option<String>,
}

/// Peer 0's part.
pub(super) async fn host(
    config: &JoinConfig,
    us: &Identity,
    mut acceptor: Acceptor,
    events: &Events,
) -> Result<Met, JoinError> {
    let mut participants = Participants {
        us,
        came: BTreeMap::new(),
        waiting: JoinSet::new(),
        outcome: watch::Sender::new(None),
        turned_away: 0,
        last_turned_away: String::new(),
        panicked: None,
    };
    let gathered = tokio::select! {
        gathered = participants.gather(&mut acceptor, events) => Some(gathered),
        () = sleep(config.timeout) => None,
    };
    let mut gathered = match gathered {
        Some(gathered) => gathered,
        None => Err(participants.missing(config, &mut acceptor).await),
    };
    let own = Card { place: Place::BesidePeerZero(acceptor.port), bytes: us.card.clone() };
    let cards = participants.came.values().map(|(_, card)| card.encode());
    let cards: Vec<_> = std::iter::once(own.encode()).chain(cards).collect();
    let answer = gathered.as_ref().map(|()| cards.clone()).map_err(ToString::to_string);
    let (streams, is_heard) = participants.answer(answer, &mut acceptor).await;
    if let Err(JoinError::Missing { is_alone, hint, .. }) = &mut gathered
        && us.workers > 2
        && !is_heard
    {
        *is_alone = true;
        if !participants.came.is_empty() {
            hint.push_str("; and none of those that had come answers any more, so rank 0 was cut off");
        }
    }
    if let Some(reason) = participants.panicked.take() {
        gathered = gathered.and(Err(JoinError::Panicked { reason }));
    }
    gathered?;
    let came = participants.came.into_values().map(|(address, card)| Known::new(card, address.ip()));
    let own = Known { card: Some(us.card.clone()), ..Known::default() };
    let known = std::iter::once(own).chain(came).collect();
    Ok(Met { acceptor, known, cards, streams })
}

impl Participants<'_> {
    /// Lets participants in until all have come. A participant that leaves or does not fit ends it: the job was started wrongly.
    async fn gather(&mut self, acceptor: &mut Acceptor, events: &Events) -> Result<(), JoinError> {
        while (self.came.len() as u32) < self.us.workers - 1 {
            tokio::select! {
                caller = acceptor.next() => match caller {
                    Ok(Caller::Member(member)) => self.admit(member).await?,
                    Ok(Caller::Unauthenticated { address, reason }) => {
                        let (address, reason) = (address.to_string(), reason.to_string());
                        self.turned_away += 1;
                        self.last_turned_away = format!("{address}: {reason}");
                        // These are not read before all have come.
                        if self.turned_away <= REPORTED {
                            events.report(LinkEvent::Refused { address, reason });
                        }
                    }
                    Err(reason) => return Err(JoinError::Panicked { reason }),
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
                    if let Some(reason) = panicked(waited) {
                        return Err(JoinError::Panicked { reason });
                    }
                }
            }
        }
        Ok(())
    }

    async fn admit(&mut self, mut member: Member) -> Result<(), JoinError> {
        let peer = member.hello.from;
        let address = member.address;
        let twice = |(first, _): &(SocketAddr, Card)| {
            format!(
                "two workers were started as {peer}, at {first} and at {address}: give every worker its own number"
            )
        };
        if let Some(sentence) = member.misfit(self.us).or_else(|| self.came.get(&peer).map(twice)) {
            // Answered here, since it is not one of those who wait.
            let _ = member.answer(self.us, &Admission::Refused(sentence.clone())).await;
            return Err(JoinError::Misfit { sentence });
        }
        if member.hello.purpose != JOIN {
            let _ = member.answer(self.us, &Admission::Busy).await;
            return Ok(());
        }
        // If it left since its proof, the task that waits with it notices.
        let _ = member.answer(self.us, &Admission::Welcome).await;
        let card = Card { place: place(&member), bytes: std::mem::take(&mut member.card) };
        self.came.insert(peer, (address, card));
        self.waiting.spawn(wait(peer, member.stream, self.outcome.subscribe()));
        Ok(())
    }

    /// Why not all have come. For those in the middle of a handshake it waits for half the timeout more: they get the answer.
    async fn missing(&self, config: &JoinConfig, acceptor: &mut Acceptor) -> JoinError {
        if let Some(source) = acceptor.lack() {
            return JoinError::Local { peer: Peer(0), address: config.rendezvous.clone(), source };
        }
        let waited = config.timeout;
        let (mut late, until) = (Vec::new(), Instant::now() + waited / 2);
        while let Some(caller) = next(acceptor, until).await {
            if let Caller::Member(member) = caller {
                late.push(member);
            }
        }
        // Connecting takes one round trip, and a handshake two. Others have come late for reasons of their own.
        let far: Vec<_> = late.iter().filter(|member| 3 * member.round_trip >= waited).collect();
        let mut missing: Vec<_> = (1..self.us.workers).map(Peer).collect();
        missing.retain(|peer| {
            !self.came.contains_key(peer) && far.iter().all(|member| member.hello.from != *peer)
        });
        let error = match far.iter().max_by_key(|member| member.round_trip) {
            Some(Member { hello, round_trip, .. }) if missing.is_empty() => {
                JoinError::Slow { peer: hello.from, round_trip: *round_trip, timeout: waited }
            }
            _ => self.absent(waited, missing),
        };
        for mut member in late {
            let _ = member.answer(self.us, &Admission::Refused(error.to_string())).await;
        }
        error
    }

    fn absent(&self, waited: Duration, missing: Vec<Peer>) -> JoinError {
        let hint = match (self.turned_away, &self.last_turned_away) {
            (0, _) => String::new(),
            (1, last) => format!("; one caller was refused, {last}"),
            (count, last) => format!("; {count} callers were refused, the last from {last}"),
        };
        let (workers, named) = (self.us.workers, listed(&missing));
        JoinError::Missing { waited, workers, named, missing, hint, is_alone: false }
    }

    /// Answers all that came, and gives back their connections, or whether anyone has received that the job cannot start.
    async fn answer(&mut self, answer: Answer, acceptor: &mut Acceptor) -> (Vec<(Peer, Stream)>, bool) {
        let failed = answer.as_ref().err().cloned();
        self.outcome.send_replace(Some(Arc::new(answer)));
        let (mut streams, mut is_heard) = (Vec::new(), false);
        let Self { waiting, panicked, .. } = self;
        let answered = async {
            while let Some(waited) = waiting.join_next().await {
                match waited {
                    Ok(Waited::Answered(peer, stream)) => streams.push((peer, stream)),
                    Ok(Waited::Left(_) | Waited::Dismissed(true)) => is_heard = true,
                    Ok(Waited::Dismissed(false)) => {}
                    ended => *panicked = panicked.take().or_else(|| cause::panicked(ended)),
                }
            }
        };
        // A participant that cannot be answered in time finds its connection closed.
        let _ = timeout(ANSWERING, answered).await;
        if let Some(sentence) = failed {
            while let Some(caller) = acceptor.come() {
                if let Caller::Member(mut member) = caller {
                    let _ = member.answer(self.us, &Admission::Refused(sentence.clone())).await;
                }
            }
        }
        (streams, is_heard)
    }
}

/// The next caller, until none is in the middle of a handshake or the time is over.
async fn next(acceptor: &mut Acceptor, until: Instant) -> Option<Caller> {
    const OFTEN: Duration = Duration::from_millis(20);
    while acceptor.has_begun() && Instant::now() < until {
        if let Ok(caller) = timeout(OFTEN, acceptor.next()).await {
            return caller.ok();
        }
    }
    acceptor.come()
}

/// Waits with one participant for the outcome, and notices if it leaves first.
async fn wait(peer: Peer, mut stream: Stream, mut outcome: watch::Receiver<Option<Arc<Answer>>>) -> Waited {
    let mut byte = [0];
    let known = tokio::select! {
        biased;
        known = outcome.wait_for(Option::is_some) => known.ok().and_then(|known| known.clone()),
        // Participants say nothing until they know the outcome: whatever comes is the end.
        _ = stream.socket().peek(&mut byte) => return Waited::Left(peer),
    };
    if let Some(answer) = known {
        let outcome = match &*answer {
            Ok(cards) => {
                let card = |peer: Peer| cards[peer.0 as usize].clone();
                Outcome::Complete(Cards(neighbours(peer, cards.len() as u32).map(card).collect()))
            }
            Err(sentence) => Outcome::Failed(sentence.clone()),
        };
        // A participant that leaves at this moment is a link that closes at once.
        if stream.write_all(&frame(&outcome.encode())).await.is_ok() {
            let _ = stream.flush().await;
        }
        if answer.is_err() {
            let left = timeout(LEAVING, stream.read(&mut byte)).await;
            return Waited::Dismissed(left.is_ok());
        }
    }
    Waited::Answered(peer, stream)
}

/// Every other peer's part.
pub(super) async fn participant(config: &mut JoinConfig, us: &Identity) -> Result<Met, JoinError> {
    let address = config.rendezvous.clone();
    let deadline = Instant::now() + config.timeout;
    let mut acceptor = None;
    let (mut silent, mut lack) = (0, None);
    let mut pause = Duration::from_millis(20);
    let mut last = "nothing answered at all, as when its host is down or a firewall drops packets".to_owned();
    loop {
        match call(config, us, &mut acceptor, deadline).await {
            Ok(stream) => {
                let host = stream.socket().peer_addr().map_err(|source| JoinError::lost(&address, source))?;
                let acceptor = acceptor.ok_or(JoinError::ListenerClosed)?;
                return hear(config, us, stream, host, acceptor).await;
            }
            Err(Call::Final(error)) => return Err(error),
            Err(Call::Late) => break,
            Err(Call::Failed(error)) if error.passes() => {
                silent += 1;
                if silent == ATTEMPTS {
                    let reason = error.to_string();
                    return Err(JoinError::Handshake { peer: us.peer, address, reason });
                }
                last = error.to_string();
            }
            Err(Call::Failed(error)) => {
                last = error.to_string();
                lack = lack_of(error);
            }
        }
        if timeout_at(deadline, sleep(pause)).await.is_err() {
            break;
        }
        pause = (pause * 2).min(Duration::from_millis(500));
    }
    let (peer, after) = (us.peer, config.timeout);
    Err(match lack {
        Some(source) => JoinError::Local { peer, address, source },
        None => JoinError::Unreachable { peer, address, after, last },
    })
}

/// An attempt to reach rank 0 failed.
enum Call {
    /// Another may succeed.
    Failed(HandshakeError),
    /// No other will.
    Final(JoinError),
    /// The time was over before a connection was made.
    Late,
}

/// What this host lacked to connect, if it did.
fn lack_of(error: HandshakeError) -> Option<io::Error> {
    match error {
        HandshakeError::Connect(error) if Cause::of(&error) == Cause::Here => Some(error),
        _ => None,
    }
}

/// Dials rank 0 once and introduces this worker.
async fn call(
    config: &mut JoinConfig,
    us: &Identity,
    acceptor: &mut Option<Acceptor>,
    deadline: Instant,
) -> Result<Stream, Call> {
    let connected = timeout_at(deadline, TcpStream::connect(&config.rendezvous)).await;
    let connected = connected.map_err(|_| Call::Late)?;
    let socket = connected.map_err(|error| Call::Failed(HandshakeError::Connect(error)))?;
    prepare(&socket);
    let port = match acceptor {
        Some(acceptor) => acceptor.port,
        None => {
            let listener = bind(config, Some(&socket), 0).await.map_err(Call::Final)?;
            let failed = |source| Call::Final(JoinError::Bind { address: config.rendezvous.clone(), source });
            acceptor.insert(Acceptor::open(listener, us.clone()).map_err(failed)?).port
        }
    };
    let address = || config.rendezvous.clone();
    match greet(socket, us, Peer(0), JOIN, port).await {
        Ok((Admission::Welcome, stream)) => Ok(stream),
        Ok((Admission::Busy, _)) => Err(Call::Failed(HandshakeError::Cut)),
        Ok((Admission::Refused(sentence), _)) => {
            Err(Call::Final(JoinError::Refused { peer: us.peer, address: address(), sentence }))
        }
        Err(error @ (HandshakeError::Impostor | HandshakeError::Other { .. } | HandshakeError::Noise(_))) => {
            let (peer, reason) = (us.peer, error.to_string());
            Err(Call::Final(JoinError::Handshake { peer, address: address(), reason }))
        }
        Err(error) => Err(Call::Failed(error)),
    }
}

/// Waits for the outcome, on the connection that then is the link to rank 0.
async fn hear(
    config: &JoinConfig,
    us: &Identity,
    mut stream: Stream,
    host: SocketAddr,
    acceptor: Acceptor,
) -> Result<Met, JoinError> {
    let address = &config.rendezvous;
    let wait = config.timeout * 3 / 2 + GRACE;
    let outcome = match timeout(wait, read_outcome(&mut stream)).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(source)) => return Err(JoinError::lost(address, source)),
        Err(_) => return Err(JoinError::NoOutcome { address: address.clone(), after: wait }),
    };
    let cards = match outcome {
        Outcome::Failed(sentence) => return Err(JoinError::Failed { sentence }),
        Outcome::Complete(Cards(cards)) => cards,
    };
    let mut known: Vec<_> = (0..us.workers).map(|_| Known::default()).collect();
    known[0].at = Some(host);
    known[us.peer.0 as usize].card = Some(us.card.clone());
    for (peer, card) in neighbours(us.peer, us.workers).zip(&cards) {
        let card = Card::decode(card).map_err(|error| JoinError::lost(address, io::Error::other(error)))?;
        known[peer.0 as usize] = Known::new(card, host.ip());
    }
    Ok(Met { acceptor, known, cards: Vec::new(), streams: vec![(Peer(0), stream)] })
}

pub(super) async fn read_outcome(stream: &mut Stream) -> io::Result<Outcome> {
    Outcome::decode(&read_frame(stream, MAX_PAYLOAD).await?).map_err(io::Error::other)
}

/// Reads a payload of at most this many bytes, with its header.
pub(super) async fn read_frame(stream: &mut Stream, most: usize) -> io::Result<Vec<u8>> {
    let mut head = [0; HEADER];
    stream.read_exact(&mut head).await?;
    let header = Header::decode(&head).map_err(io::Error::other)?;
    if header.length as usize > most {
        return Err(io::Error::other(WireError::TooLong(header.length)));
    }
    let mut payload = vec![0; header.length as usize];
    stream.read_exact(&mut payload).await?;
    header.check(&payload, UNLINKED).map_err(io::Error::other)?;
    Ok(payload)
}
