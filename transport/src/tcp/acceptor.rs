//! The listening port: lets in peers that prove that they hold the job's secret, and turns all others away.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::cause::{Cause, panicked};
use super::handshake::{HandshakeError, Identity, Member, challenge, listen};
use super::heard::Heard;
use super::stream::prepare;
use super::wire::JOIN;

/// Connections that may be waiting for their hello at the same time: few enough for a process that may open 1024 files.
const PENDING: usize = 256;
/// How long the hello of one may take while others wait for its place. A worker sends it as soon as it is connected, so
/// that up to 256 / 50 ms = 5,000 connections a second that say nothing keep none out.
const PATIENCE: Duration = Duration::from_millis(50);
/// Authenticated callers that may wait for their admission.
const WAITING: usize = 64;

/// A connection has come in.
#[derive(Debug)]
pub(super) enum Caller {
    /// A holder of the secret, who waits for the admission.
    Member(Member),
    /// A connection that was refused, without an answer.
    Unauthenticated {
        /// Where it called from.
        address: SocketAddr,
        /// Why it was refused.
        reason: HandshakeError,
    },
}

/// A listening port and the task that answers it; dropping it closes the port.
#[derive(Debug)]
pub(super) struct Acceptor {
    /// Where it listens.
    pub(super) port: u16,
    /// The address of which it is a port: that of one interface, or of all.
    pub(super) ip: IpAddr,
    /// The peer that came.
    callers: mpsc::Receiver<Caller>,
    known: Arc<Known>,
    /// One task, which ends when this is dropped, or in a panic: that is what it returns.
    task: JoinSet<String>,
}

/// What is known of those who have not come yet.
#[derive(Debug, Default)]
struct Known {
    /// Where those call from who have said a hello to join, made with the job's key, and were not handed on yet.
    begun: Mutex<BTreeSet<SocketAddr>>,
    /// What this host lacked when the last connection could not be taken.
    lack: Mutex<Option<io::Error>>,
}

impl Known {
    fn begun(&self) -> MutexGuard<'_, BTreeSet<SocketAddr>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lack(&self) -> MutexGuard<'_, Option<io::Error>> {
        self.lack.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Acceptor {
    pub(super) fn open(listener: TcpListener, us: Identity) -> io::Result<Self> {
        let at = listener.local_addr()?;
        let (sender, callers) = mpsc::channel(WAITING);
        let mut task = JoinSet::new();
        let known = Arc::new(Known::default());
        let knows = Arc::clone(&known);
        let (us, heard) = (Arc::new(us), Arc::new(Heard::default()));
        let proves = move |stream, address, is_heard: Arc<AtomicBool>| {
            let (us, heard, known) = (Arc::clone(&us), Arc::clone(&heard), Arc::clone(&knows));
            async move { prove(stream, address, &us, &heard, (&is_heard, &known)).await }
        };
        task.spawn(keep(listener, proves, Arc::clone(&known), sender));
        Ok(Acceptor { port: at.port(), ip: at.ip(), callers, known, task })
    }

    /// The next caller.
    ///
    /// # Errors
    /// What a panic said: no connection can come any more.
    pub(super) async fn next(&mut self) -> Result<Caller, String> {
        match self.callers.recv().await {
            Some(caller) => Ok(caller),
            None => Err(match self.task.join_next().await {
                Some(Ok(said)) => said,
                ended => ended.and_then(panicked).unwrap_or_else(|| "its port was closed".into()),
            }),
        }
    }

    /// A caller that has come already, if there is one.
    pub(super) fn come(&mut self) -> Option<Caller> {
        self.callers.try_recv().ok()
    }

    /// Whether anyone has said a hello to join and is not among [`callers`](Self::callers) yet.
    pub(super) fn has_begun(&self) -> bool {
        !self.known.begun().is_empty()
    }

    /// What this host lacks to take connections in, if it does.
    pub(super) fn lack(&self) -> Option<io::Error> {
        self.known.lack().take()
    }
}

/// A connection whose hello has not come yet.
struct Pending {
    since: Instant,
    task: AbortHandle,
    /// Set once the hello has come and was made with the job's key.
    is_heard: Arc<AtomicBool>,
}

/// Accepts for ever. Each caller proves itself in a task of its own, so that none waits for another. Returns what the panic of
/// one of these tasks said.
async fn keep<F: Future<Output = Option<Caller>> + Send + 'static>(
    listener: TcpListener,
    prove: impl Fn(TcpStream, SocketAddr, Arc<AtomicBool>) -> F,
    known: Arc<Known>,
    callers: mpsc::Sender<Caller>,
) -> String {
    let mut proving = JoinSet::new();
    let mut pending: VecDeque<Pending> = VecDeque::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(ended) = proving.join_next() => match panicked(ended) {
                Some(said) => return said,
                None => continue,
            },
        };
        let (stream, mut address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // The caller left at once, or descriptors ran out: either passes, and neither should spin.
                if Cause::of(&error) == Cause::Here {
                    *known.lack() = Some(error);
                }
                sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        *known.lack() = None;
        if let ip @ IpAddr::V4(_) = address.ip().to_canonical() {
            address.set_ip(ip); // a listener for both families reports IPv4 addresses as mapped ones
        }
        loop {
            pending.retain(|one| !one.task.is_finished() && !one.is_heard.load(Ordering::Relaxed));
            if pending.len() < PENDING {
                break;
            }
            let Some(oldest) = pending.front() else { break };
            match timeout_at(oldest.since + PATIENCE, proving.join_next()).await {
                Ok(ended) => {
                    if let Some(said) = ended.and_then(panicked) {
                        return said;
                    }
                }
                Err(_) => {
                    oldest.task.abort();
                    pending.pop_front();
                }
            }
        }
        let is_heard = Arc::new(AtomicBool::new(false));
        let proof = prove(stream, address, Arc::clone(&is_heard));
        let (callers, known) = (callers.clone(), Arc::clone(&known));
        let task = proving.spawn(async move {
            if let Some(caller) = proof.await {
                let _ = callers.send(caller).await;
            }
            known.begun().remove(&address);
        });
        pending.push_back(Pending { since: Instant::now(), task, is_heard });
    }
}

/// None for one that only looked whether the port is open: another worker whose link was opened otherwise, or a
/// health check.
async fn prove(
    stream: TcpStream,
    address: SocketAddr,
    us: &Identity,
    heard: &Heard,
    (is_heard, known): (&AtomicBool, &Known),
) -> Option<Caller> {
    prepare(&stream);
    let proof = async {
        let heard = timeout(us.timeout, listen(stream, us, heard)).await;
        let greeted = heard.unwrap_or(Err(HandshakeError::NoHello))?;
        is_heard.store(true, Ordering::Relaxed);
        if greeted.hello.purpose == JOIN {
            known.begun().insert(address);
        }
        let proven = timeout(us.timeout, challenge(greeted, address, us)).await;
        proven.unwrap_or(Err(HandshakeError::Slow(us.timeout)))
    };
    match proof.await {
        Ok(member) => Some(Caller::Member(member)),
        Err(HandshakeError::Nothing) => None,
        Err(reason) => Some(Caller::Unauthenticated { address, reason }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A caller whose proof panics: the owner of the port gets what the panic said.
    #[tokio::test]
    async fn a_panic_in_the_acceptor_is_reported() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, callers) = mpsc::channel(WAITING);
        let (mut task, known) = (JoinSet::new(), Arc::new(Known::default()));
        let proves = |_, address: SocketAddr, _| async move { panic!("no proof from {}", address.ip()) };
        task.spawn(keep(listener, proves, Arc::clone(&known), sender));
        let mut acceptor = Acceptor { port: address.port(), ip: address.ip(), callers, known, task };
        let _caller = TcpStream::connect(address).await.unwrap();
        let said = timeout(Duration::from_secs(10), acceptor.next()).await.unwrap().unwrap_err();
        assert_eq!(said, "no proof from 127.0.0.1");
    }
}
