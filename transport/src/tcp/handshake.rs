//! Who is there? Four messages by which both ends of a connection learn that the other holds the job's secret,
//! in this connection and now. Their bytes are told in the module's documentation, `tcp`.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::wire::{CHALLENGE, Challenge, HELLO, Hello, MAGIC, VERDICT, VERSION, Verdict, WORD};
use crate::secret::random_bytes;
use crate::{Peer, Secret};

/// The longest that a handshake may take.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(5);

/// Who we are to others.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) peer: Peer,
    pub(super) workers: u32,
    pub(super) secret: Secret,
    /// How long a handshake may take here.
    pub(super) patience: Duration,
}

/// A handshake came to no verdict.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error(
        "it was closed without an answer, as is done to strangers: the secrets probably differ; give every \
         worker of the job the same one"
    )]
    Silent,
    #[error(
        "it was closed in the middle of the handshake: the peer ended or was overrun; its own log says which"
    )]
    Cut,
    #[error(
        "whoever answers there does not know the job's secret: check that the address belongs to this job and \
         that every worker has the same secret"
    )]
    Impostor,
    #[error("{found} answers there: check the address")]
    Other { found: Peer },
    #[error("nothing that makes sense was answered: {0}; check that the address belongs to this job")]
    Wire(#[from] super::wire::WireError),
    #[error(
        "no answer came within {0:?}: check that the address belongs to this job and that its host is not overloaded"
    )]
    Slow(Duration),
    #[error("{0}")]
    Io(io::Error),
    #[error("the operating system gave no random bytes: {0}")]
    NoRandomness(#[from] getrandom::Error),
    #[error("it connected and left without a word")]
    Nothing,
    #[error("it did not say a gleaner hello: something else calls this port")]
    Stranger,
    #[error(
        "its hello was not made with the job's secret: it belongs to another job, or was started with another \
         secret"
    )]
    Unproven,
    #[error("its hello was heard before, so it was recorded and sent again")]
    Replayed,
    #[error("it sent our own hello back")]
    Reflected,
}

impl HandshakeError {
    /// An attempt that another attempt may mend: the acceptor may have been overrun by strangers.
    pub(super) fn passes(&self) -> bool {
        matches!(self, HandshakeError::Silent | HandshakeError::Cut)
    }
}

/// A connection that ended in the middle is told by `closed`, whichever way the kernel puts it.
fn ended(closed: HandshakeError) -> impl FnOnce(io::Error) -> HandshakeError {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    |error| match error.kind() {
        UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe => closed,
        _ => HandshakeError::Io(error),
    }
}

/// HMAC-SHA-256 over a label, which keeps the four messages apart, and what was said so far.
pub(super) fn mac(secret: &Secret, label: &str, said: &[&[u8]]) -> [u8; WORD] {
    let mut key = [0; 64];
    key[..WORD].copy_from_slice(secret.bytes());
    let mut mac = Hmac::<Sha256>::new(&key.into());
    mac.update(label.as_bytes());
    for part in said {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

pub(super) const HELLO_LABEL: &str = "gleaner hello\0";
pub(super) const CHALLENGE_LABEL: &str = "gleaner challenge\0";
pub(super) const PROOF_LABEL: &str = "gleaner proof\0";
pub(super) const VERDICT_LABEL: &str = "gleaner verdict\0";

fn same(found: &[u8], expected: &[u8; WORD]) -> bool {
    found.ct_eq(expected.as_slice()).into()
}

/// The dialler's side, on a fresh connection.
pub(super) async fn greet(
    stream: &mut TcpStream,
    us: &Identity,
    to: Peer,
    purpose: u32,
    port: u16,
) -> Result<Verdict, HandshakeError> {
    let nonce = random_bytes()?;
    let hello = Hello { version: VERSION, purpose, from: us.peer, to, workers: us.workers, port, nonce };
    timeout(us.patience, speak(stream, &us.secret, &hello))
        .await
        .unwrap_or(Err(HandshakeError::Slow(us.patience)))
}

/// Says that hello, whatever it claims, and all that follows from it.
pub(super) async fn speak(
    stream: &mut TcpStream,
    secret: &Secret,
    hello: &Hello,
) -> Result<Verdict, HandshakeError> {
    let mut said = Vec::with_capacity(HELLO.1 + CHALLENGE.1);
    said.extend_from_slice(&hello.encode());
    said.extend_from_slice(&mac(secret, HELLO_LABEL, &[&said]));
    stream.write_all(&said).await.map_err(ended(HandshakeError::Silent))?;

    let mut challenge = [0; CHALLENGE.1];
    stream.read_exact(&mut challenge).await.map_err(ended(HandshakeError::Silent))?;
    let (claims, proof) = challenge.split_at(CHALLENGE.0);
    if !same(proof, &mac(secret, CHALLENGE_LABEL, &[&said, claims])) {
        return Err(HandshakeError::Impostor);
    }
    let from = Challenge::decode(claims)?.from;
    said.extend_from_slice(&challenge);
    let proof = mac(secret, PROOF_LABEL, &[&said]);
    stream.write_all(&proof).await.map_err(ended(HandshakeError::Cut))?;

    let mut verdict = vec![0; VERDICT];
    stream.read_exact(&mut verdict).await.map_err(ended(HandshakeError::Cut))?;
    let length = VERDICT + Verdict::sentence(&verdict)?;
    verdict.resize(length + WORD, 0);
    stream.read_exact(&mut verdict[VERDICT..]).await.map_err(ended(HandshakeError::Cut))?;
    let (verdict, proof) = verdict.split_at(length);
    if !same(proof, &mac(secret, VERDICT_LABEL, &[&said, verdict])) {
        return Err(HandshakeError::Impostor);
    }
    let verdict = Verdict::decode(verdict)?;
    if from != hello.to && !matches!(verdict, Verdict::Refused(_)) {
        return Err(HandshakeError::Other { found: from });
    }
    Ok(verdict)
}

/// The nonces of all hellos that bore the right MAC, so that none is answered twice. Strangers add none.
#[derive(Debug, Default)]
pub(super) struct Heard(Mutex<HashSet<[u8; WORD]>>);

/// A caller that has proved that it holds the secret, and waits for the verdict.
#[derive(Debug)]
pub(super) struct Visitor {
    pub(super) stream: TcpStream,
    pub(super) address: SocketAddr,
    pub(super) hello: Hello,
    /// Hello and challenge, as they were on the wire.
    said: Vec<u8>,
}

/// The acceptor's side, up to the verdict. What the hello claims was not looked at yet, except that it is not
/// our own: claims count only once the caller has proved that it says them now.
pub(super) async fn challenge(
    mut stream: TcpStream,
    address: SocketAddr,
    us: &Identity,
    heard: &Heard,
) -> Result<Visitor, HandshakeError> {
    let gone = || ended(HandshakeError::Stranger);
    let mut said = vec![0; HELLO.1];
    let begun = stream.read(&mut said[..MAGIC.len()]).await.map_err(gone())?;
    if begun == 0 {
        return Err(HandshakeError::Nothing);
    }
    // A stranger that begins otherwise is turned away without waiting for the rest.
    stream.read_exact(&mut said[begun..MAGIC.len()]).await.map_err(gone())?;
    if said[..MAGIC.len()] != MAGIC {
        return Err(HandshakeError::Stranger);
    }
    stream.read_exact(&mut said[MAGIC.len()..]).await.map_err(gone())?;
    let (claims, proof) = said.split_at(HELLO.0);
    if !same(proof, &mac(&us.secret, HELLO_LABEL, &[claims])) {
        return Err(HandshakeError::Unproven);
    }
    let hello = Hello::decode(claims)?;
    if hello.from == us.peer {
        return Err(HandshakeError::Reflected);
    }
    if !heard.0.lock().unwrap_or_else(PoisonError::into_inner).insert(hello.nonce) {
        return Err(HandshakeError::Replayed);
    }

    let challenge = Challenge { version: VERSION, from: us.peer, nonce: random_bytes()? }.encode();
    let proof = mac(&us.secret, CHALLENGE_LABEL, &[&said, &challenge]);
    said.extend_from_slice(&challenge);
    said.extend_from_slice(&proof);
    stream.write_all(&said[HELLO.1..]).await.map_err(ended(HandshakeError::Cut))?;

    let mut proof = [0; WORD];
    stream.read_exact(&mut proof).await.map_err(ended(HandshakeError::Cut))?;
    if !same(&proof, &mac(&us.secret, PROOF_LABEL, &[&said])) {
        return Err(HandshakeError::Impostor);
    }
    Ok(Visitor { stream, address, hello, said })
}

impl Visitor {
    /// Tells the verdict.
    pub(super) async fn answer(&mut self, us: &Identity, verdict: &Verdict) -> io::Result<()> {
        let mut bytes = verdict.encode();
        let proof = mac(&us.secret, VERDICT_LABEL, &[&self.said, &bytes]);
        bytes.extend_from_slice(&proof);
        timeout(us.patience, self.stream.write_all(&bytes)).await?
    }

    /// Says what differs between the caller's picture of the job and ours, both values, or nothing if all agree.
    pub(super) fn misfit(&self, us: &Identity) -> Option<String> {
        let (Hello { version, from, to, workers, .. }, us_peer) = (&self.hello, us.peer);
        let address = self.address.ip();
        if *version != VERSION {
            Some(format!(
                "{from} at {address} speaks protocol version {version} and {us_peer} speaks version {VERSION}: \
                 install the same version of gleaner on every host"
            ))
        } else if to != &us_peer {
            Some(format!(
                "{from} at {address} meant to reach {to} and reached {us_peer}: check the rendezvous address"
            ))
        } else if *workers != us.workers {
            Some(format!(
                "{from} at {address} was started for {workers} workers and {us_peer} for {}: start every worker \
                 with the same number",
                us.workers
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
