//! Four messages by which both ends of a connection learn that the other holds the job's key, in this
//! connection and now, and agree on keys for it. Their bytes are described in the module's documentation, `tcp`.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use snow::{Builder, HandshakeState};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use super::heard::Heard;
use super::rendezvous::read_frame;
use super::stream::{LinkId, Stream};
use super::wire::{
    ADD, ADMISSION, Admission, CHALLENGE, Challenge, HELLO, Hello, JOIN, MAGIC, NOISE, TAKEN, VERSION, frame,
};
use crate::secret::JobKey;
use crate::{MAX_CARD, Peer, Transport};

/// The handshake of two that share a key and have none of their own (noiseprotocol.org, revision 34, §9).
const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";

/// What the dialler seals first, so that the acceptor knows that it is there now.
const PROOF: &[u8] = b"gleaner proof";

/// This worker, as others see it.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) peer: Peer,
    pub(super) workers: u32,
    /// Of the membership.
    pub(super) epoch: u16,
    pub(super) card: Bytes,
    pub(super) key: JobKey,
    /// Whether links are not sealed.
    pub(super) is_plain: bool,
    /// What carries links.
    pub(super) transport: Transport,
    /// How many sockets a link has.
    pub(super) sockets: u8,
    /// How long to wait for workers and links to come about, and for a handshake of two round trips.
    pub(super) timeout: Duration,
}

impl Identity {
    /// The timeout, as hellos carry it.
    fn millis(&self) -> u32 {
        u32::try_from(self.timeout.as_millis()).unwrap_or(u32::MAX)
    }

    fn hello(&self, to: Peer, purpose: u32, port: u16) -> Hello {
        let Self { peer: from, workers, epoch, is_plain, sockets, .. } = *self;
        let (version, transport, socket, timeout) = (VERSION, self.transport.number(), 0, self.millis());
        Hello {
            version,
            purpose,
            from,
            to,
            workers,
            port,
            epoch,
            is_plain,
            transport,
            sockets,
            socket,
            timeout,
        }
    }
}

/// A handshake did not end in an admission.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error(
        "it was closed without an answer, as is done to all that do not belong to the job: the secrets or the jobs' \
         ids probably differ; give every worker of the job the same ones"
    )]
    Silent,
    #[error(
        "it was closed in the middle of the handshake: the peer ended or was overrun; its own log says which"
    )]
    Cut,
    #[error(
        "the process that answers there does not know the job's secret: check that the address belongs to this job and \
         that every worker has the same secret"
    )]
    Impostor,
    #[error("{found} answers there: check the address")]
    Other { found: Peer },
    #[error("nothing that makes sense was answered: {0}; check that the address belongs to this job")]
    Wire(#[from] super::wire::WireError),
    #[error(
        "no answer came within {0:?}: check that the address belongs to this job and that its host is not overloaded, or raise \
         the timeout (GLEANER_TIMEOUT) where a round trip takes more than a third of it"
    )]
    Slow(Duration),
    #[error("{0}")]
    Io(io::Error),
    #[error("could not connect: {0}")]
    Connect(io::Error),
    #[error("the handshake could not be computed: {0}; check that the operating system has random numbers")]
    Noise(snow::Error),
    #[error("it connected and left without sending anything")]
    Nothing,
    #[error("it did not say a gleaner hello: something else calls this port")]
    NoHello,
    #[error(
        "its hello was not made with the job's key: it belongs to another job, or was started with another secret"
    )]
    Unproven,
    #[error("its hello was received before, so it was recorded and sent again")]
    Replayed,
    #[error("it sent our own hello back")]
    Reflected,
    #[error("its hello was made for {0}, and may have been recorded there: check the rendezvous address")]
    Misdirected(Peer),
}

impl HandshakeError {
    /// An attempt that another attempt may mend: the acceptor may have been overrun by unauthenticated peers.
    pub(super) fn passes(&self) -> bool {
        matches!(self, HandshakeError::Silent | HandshakeError::Cut)
    }
}

/// A connection that ended in the middle is reported by `closed`, whichever way the kernel puts it.
fn ended(closed: HandshakeError) -> impl FnOnce(io::Error) -> HandshakeError {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    |error| match error.kind() {
        UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe => closed,
        _ => HandshakeError::Io(error),
    }
}

fn noise(key: &JobKey) -> Builder<'_> {
    // The name is ours, and a key has the right length.
    #[expect(clippy::expect_used)]
    let params = PATTERN.parse().expect("the pattern is known");
    #[expect(clippy::expect_used)]
    Builder::new(params).psk(0, key.bytes()).expect("a key of 32 bytes")
}

/// What follows is sealed with the keys of a handshake that is done; `as_dialler` or as acceptor.
fn sealed(socket: TcpStream, mut noise: HandshakeState, as_dialler: bool) -> Stream {
    let id = noise.get_handshake_hash().first_chunk().copied().unwrap_or_default();
    let (out, back) = noise.dangerously_get_raw_split();
    let (send, receive) = if as_dialler { (&out, &back) } else { (&back, &out) };
    Stream::new(socket, send, receive).named(id)
}

/// Whether a hello of this purpose is followed by a card: what the caller brings, or the link to which it adds a socket.
fn brings(purpose: u32) -> bool {
    purpose == JOIN || purpose == ADD
}

/// The dialler's side, on a fresh connection. It takes at most the timeout. Only who joins and has proved itself waits longer,
/// since rank 0 alone decides who has come in time: for as long as it may wait for others, and two round trips.
pub(super) async fn greet(
    socket: TcpStream,
    us: &Identity,
    to: Peer,
    purpose: u32,
    port: u16,
) -> Result<(Admission, Stream), HandshakeError> {
    introduce(socket, us, &us.hello(to, purpose, port), &us.card).await
}

/// The same for one more socket of a link that is being opened: which link, and which of its sockets.
pub(super) async fn add(
    socket: TcpStream,
    us: &Identity,
    to: Peer,
    link: LinkId,
    number: u8,
) -> Result<(Admission, Stream), HandshakeError> {
    introduce(socket, us, &Hello { socket: number, ..us.hello(to, ADD, 0) }, &link).await
}

async fn introduce(
    socket: TcpStream,
    us: &Identity,
    hello: &Hello,
    card: &[u8],
) -> Result<(Admission, Stream), HandshakeError> {
    let slow = |_| HandshakeError::Slow(us.timeout);
    let (begun, mut deadline) = (Instant::now(), Instant::now() + us.timeout);
    let proven = timeout_at(deadline, prove(socket, &us.key, hello, card)).await.map_err(slow)??;
    if hello.purpose == JOIN {
        deadline = deadline.max(Instant::now() + us.timeout / 2 + 2 * begun.elapsed());
    }
    timeout_at(deadline, admitted(proven, hello)).await.map_err(slow)?
}

/// The bytes of a hello.
pub(super) fn hello(noise: &mut HandshakeState, hello: &Hello) -> Result<Vec<u8>, HandshakeError> {
    let mut said = vec![0; MAGIC.len() + HELLO + NOISE];
    said[..MAGIC.len()].copy_from_slice(&MAGIC);
    noise.write_message(&hello.encode(), &mut said[MAGIC.len()..]).map_err(HandshakeError::Noise)?;
    Ok(said)
}

/// The state of a dialler that has said nothing yet.
pub(super) fn dialler(key: &JobKey) -> Result<HandshakeState, HandshakeError> {
    noise(key).build_initiator().map_err(HandshakeError::Noise)
}

/// Says that hello, whatever it claims, and all that follows from it.
pub(super) async fn speak(
    socket: TcpStream,
    key: &JobKey,
    claims: &Hello,
    card: &[u8],
) -> Result<(Admission, Stream), HandshakeError> {
    admitted(prove(socket, key, claims, card).await?, claims).await
}

/// Up to the proof, and the card where there is one. Says who answers.
async fn prove(
    mut socket: TcpStream,
    key: &JobKey,
    claims: &Hello,
    card: &[u8],
) -> Result<(Peer, Stream), HandshakeError> {
    let mut noise = dialler(key)?;
    let said = hello(&mut noise, claims)?;
    socket.write_all(&said).await.map_err(ended(HandshakeError::Silent))?;

    let mut challenge = [0; CHALLENGE + NOISE];
    socket.read_exact(&mut challenge).await.map_err(ended(HandshakeError::Silent))?;
    let mut answered = [0; CHALLENGE];
    noise.read_message(&challenge, &mut answered).map_err(|_| HandshakeError::Impostor)?;
    let from = Challenge::decode(&answered)?.from;
    let mut stream = sealed(socket, noise, true);
    stream.write_all(PROOF).await.map_err(ended(HandshakeError::Cut))?;
    if brings(claims.purpose) {
        stream.write_all(&frame(card)).await.map_err(ended(HandshakeError::Cut))?;
    }
    stream.flush().await.map_err(ended(HandshakeError::Cut))?;
    Ok((from, stream))
}

/// From there to the admission.
async fn admitted(
    (from, mut stream): (Peer, Stream),
    claims: &Hello,
) -> Result<(Admission, Stream), HandshakeError> {
    let mut admission = vec![0; ADMISSION];
    stream.read_exact(&mut admission).await.map_err(ended(HandshakeError::Cut))?;
    admission.resize(ADMISSION + Admission::sentence(&admission)?, 0);
    stream.read_exact(&mut admission[ADMISSION..]).await.map_err(ended(HandshakeError::Cut))?;
    let admission = Admission::decode(&admission)?;
    if from != claims.to && !matches!(admission, Admission::Refused(_)) {
        return Err(HandshakeError::Other { found: from });
    }
    stream.finish_handshake(!claims.is_plain);
    Ok((admission, stream))
}

/// Says that this dialler takes the link. Where the connection broke since, the link reports it.
pub(super) async fn say_taken(first: &mut Stream) {
    if first.write_all(&TAKEN).await.is_ok() {
        let _ = first.flush().await;
    }
}

/// Waits until the dialler that was welcomed says so. False if it leaves instead.
pub(super) async fn taken(first: &mut Stream, limit: Duration) -> io::Result<bool> {
    let mut said = [0; TAKEN.len()];
    match timeout(limit, first.read_exact(&mut said)).await? {
        Ok(_) => Ok(said == TAKEN),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// A caller that has proved that it holds the job's key, and waits for the admission.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) stream: Stream,
    pub(super) address: SocketAddr,
    pub(super) hello: Hello,
    /// What it brought, if it wants to join; or the link to which it adds a socket.
    pub(super) card: Bytes,
    /// From the challenge to the proof.
    pub(super) round_trip: Duration,
}

/// A caller whose hello was made with the job's key, now or before.
pub(super) struct Greeted {
    socket: TcpStream,
    noise: HandshakeState,
    pub(super) hello: Hello,
}

/// The acceptor's side, up to the hello.
pub(super) async fn listen(
    mut socket: TcpStream,
    us: &Identity,
    heard: &Heard,
) -> Result<Greeted, HandshakeError> {
    let gone = || ended(HandshakeError::NoHello);
    let mut said = [0; MAGIC.len() + HELLO + NOISE];
    let begun = socket.read(&mut said[..MAGIC.len()]).await.map_err(gone())?;
    if begun == 0 {
        return Err(HandshakeError::Nothing);
    }
    // A caller that begins otherwise is refused without waiting for the rest.
    socket.read_exact(&mut said[begun..MAGIC.len()]).await.map_err(gone())?;
    if said[..MAGIC.len()] != MAGIC {
        return Err(HandshakeError::NoHello);
    }
    socket.read_exact(&mut said[MAGIC.len()..]).await.map_err(gone())?;
    let mut noise = noise(&us.key).build_responder().map_err(HandshakeError::Noise)?;
    let mut claims = [0; HELLO];
    noise.read_message(&said[MAGIC.len()..], &mut claims).map_err(|_| HandshakeError::Unproven)?;
    let hello = Hello::decode(&claims)?;
    if hello.from == us.peer {
        return Err(HandshakeError::Reflected);
    }
    // One that was made for another is answered there, once.
    if hello.to != us.peer {
        return Err(HandshakeError::Misdirected(hello.to));
    }
    // A hello begins with a public key that is made for it.
    let public = said[MAGIC.len()..].first_chunk().copied().unwrap_or_default();
    if !heard.is_new(public) {
        return Err(HandshakeError::Replayed);
    }
    Ok(Greeted { socket, noise, hello })
}

/// The acceptor's side, from there to the admission. What the hello claims was not looked at yet, except that it is not our
/// own: claims count only once the caller has proved that it says them now.
pub(super) async fn challenge(
    Greeted { mut socket, mut noise, hello }: Greeted,
    address: SocketAddr,
    us: &Identity,
) -> Result<Member, HandshakeError> {
    let mut challenge = [0; CHALLENGE + NOISE];
    let claims = Challenge { version: VERSION, from: us.peer }.encode();
    noise.write_message(&claims, &mut challenge).map_err(HandshakeError::Noise)?;
    socket.write_all(&challenge).await.map_err(ended(HandshakeError::Cut))?;
    let asked = Instant::now();

    let mut stream = sealed(socket, noise, false);
    let mut proof = [0; PROOF.len()];
    stream.read_exact(&mut proof).await.map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => HandshakeError::Impostor,
        _ => ended(HandshakeError::Cut)(error),
    })?;
    if proof != PROOF {
        return Err(HandshakeError::Impostor);
    }
    let round_trip = asked.elapsed();
    // Other versions may bring none, and get the answer that they are others.
    let card = if brings(hello.purpose) && hello.version == VERSION {
        read_frame(&mut stream, MAX_CARD).await.map_err(ended(HandshakeError::Cut))?.into()
    } else {
        Bytes::new()
    };
    Ok(Member { stream, address, hello, card, round_trip })
}

impl Member {
    /// Sends the admission. What follows is sealed, or not.
    pub(super) async fn answer(&mut self, us: &Identity, admission: &Admission) -> io::Result<()> {
        let answer = async {
            self.stream.write_all(&admission.encode()).await?;
            self.stream.flush().await
        };
        timeout(us.timeout, answer).await??;
        self.stream.finish_handshake(!us.is_plain);
        Ok(())
    }

    /// Welcomes it to a link and waits until it takes the link. False if it leaves instead, as one does that has another
    /// link to us by then.
    pub(super) async fn welcome(&mut self, us: &Identity) -> io::Result<bool> {
        self.answer(us, &Admission::Welcome).await?;
        taken(&mut self.stream, us.timeout).await
    }

    /// Says what differs between the caller's picture of the job and ours, both values, or nothing if all agree.
    pub(super) fn misfit(&self, us: &Identity) -> Option<String> {
        let (Hello { version, from, workers, .. }, us_peer) = (&self.hello, us.peer);
        let address = self.address.ip();
        if *version != VERSION {
            Some(format!(
                "{from} at {address} speaks protocol version {version} and {us_peer} speaks version {VERSION}: \
                 install the same version of gleaner on every host"
            ))
        } else if *workers != us.workers {
            Some(format!(
                "{from} at {address} was started for {workers} workers and {us_peer} for {}: start every worker \
                 with the same number",
                us.workers
            ))
        } else if self.hello.epoch != us.epoch {
            Some(format!(
                "{from} at {address} belongs to membership epoch {} of the job and {us_peer} to epoch {}: it was started before \
                 or after the set of workers changed; end it, or start all workers again",
                self.hello.epoch, us.epoch
            ))
        } else if self.hello.is_plain != us.is_plain {
            let (plain, other) = if us.is_plain { (us_peer, *from) } else { (*from, us_peer) };
            Some(format!(
                "{plain} was started with --plain (GLEANER_PLAIN) and {other} was not: start every worker in the same way"
            ))
        } else if self.hello.transport != us.transport.number() {
            Some(format!(
                "the transport of {from} at {address} is {} and that of {us_peer} is {}: give every worker the same one \
                 (--transport, GLEANER_TRANSPORT)",
                Transport::name_of(self.hello.transport),
                us.transport
            ))
        } else if self.hello.sockets != us.sockets {
            Some(format!(
                "{from} at {address} was started with {} and {us_peer} with {}: give every worker the same number (--sockets, \
                 GLEANER_SOCKETS)",
                sockets(self.hello.sockets),
                sockets(us.sockets)
            ))
        } else if self.hello.timeout != us.millis() {
            let [theirs, ours] = [self.hello.timeout, us.millis()].map(|millis| f64::from(millis) / 1e3);
            Some(format!(
                "{from} at {address} was started with a timeout of {theirs} s and {us_peer} with {ours} s: give every worker \
                 the same one (GLEANER_TIMEOUT)"
            ))
        } else if from.0 >= us.workers {
            Some(format!(
                "a worker at {address} was started as {from} of {workers} workers: ranks are numbered from 0 to {}",
                us.workers - 1
            ))
        } else {
            None
        }
    }
}

fn sockets(number: u8) -> String {
    format!("{number} socket{} for each link", if number == 1 { "" } else { "s" })
}
