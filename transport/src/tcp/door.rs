//! The listening port: lets in whoever proves that it holds the job's secret, and turns all others away.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::handshake::{HandshakeError, Heard, Identity, Visitor, challenge};

/// Callers that may be proving themselves at the same time.
const PENDING: usize = 64;
/// How long a caller may take while others wait for its place. A burst of honest workers never meets this;
/// strangers who connect and say nothing do.
const PATIENCE: Duration = Duration::from_millis(500);
/// Proven visitors that may wait for their verdict.
const WAITING: usize = 64;

/// Someone came to the door.
#[derive(Debug)]
pub(super) enum Caller {
    /// A holder of the secret, who waits for the verdict.
    Visitor(Visitor),
    /// Someone who was turned away, without an answer.
    Stranger {
        /// Where it called from.
        address: SocketAddr,
        /// Why it was turned away.
        reason: HandshakeError,
    },
}

/// A listening port and the task that answers it; dropping it closes the port.
#[derive(Debug)]
pub(super) struct Door {
    /// Where it listens.
    pub(super) port: u16,
    /// Who came.
    pub(super) callers: mpsc::Receiver<Caller>,
    /// One task, which ends when this is dropped.
    _keeper: JoinSet<()>,
}

impl Door {
    pub(super) fn open(listener: TcpListener, us: Identity) -> io::Result<Self> {
        let port = listener.local_addr()?.port();
        let (sender, callers) = mpsc::channel(WAITING);
        let mut keeper = JoinSet::new();
        keeper.spawn(keep(listener, Arc::new(us), sender));
        Ok(Door { port, callers, _keeper: keeper })
    }
}

/// Accepts for ever. Each caller proves itself in a task of its own, so that none waits for another.
async fn keep(listener: TcpListener, us: Arc<Identity>, callers: mpsc::Sender<Caller>) {
    let heard = Arc::new(Heard::default());
    let mut proving = JoinSet::new();
    let mut oldest = VecDeque::new();
    loop {
        let (stream, mut address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(_) => {
                // The caller left at once, or descriptors ran out: either passes, and neither should spin.
                sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        if let ip @ IpAddr::V4(_) = address.ip().to_canonical() {
            address.set_ip(ip); // a listener for both families tells IPv4 addresses as mapped ones
        }
        while proving.try_join_next().is_some() {}
        oldest.retain(|(_, task): &(Instant, AbortHandle)| !task.is_finished());
        while proving.len() >= PENDING {
            let due = oldest.front().map_or_else(Instant::now, |(since, _)| *since + PATIENCE);
            if timeout_at(due, proving.join_next()).await.is_err()
                && let Some((_, task)) = oldest.pop_front()
            {
                task.abort();
                proving.join_next().await;
            }
        }
        let (us, heard, callers) = (Arc::clone(&us), Arc::clone(&heard), callers.clone());
        let task = proving.spawn(async move {
            if let Some(caller) = prove(stream, address, &us, &heard).await {
                let _ = callers.send(caller).await;
            }
        });
        oldest.push_back((Instant::now(), task));
    }
}

/// None for one that only looked whether the port is open: another worker whose link came about otherwise, or a
/// health check.
async fn prove(stream: TcpStream, address: SocketAddr, us: &Identity, heard: &Heard) -> Option<Caller> {
    let _ = stream.set_nodelay(true);
    match timeout(us.patience, challenge(stream, address, us, heard)).await {
        Ok(Ok(visitor)) => Some(Caller::Visitor(visitor)),
        Ok(Err(HandshakeError::Nothing)) => None,
        Ok(Err(reason)) => Some(Caller::Stranger { address, reason }),
        Err(_) => Some(Caller::Stranger { address, reason: HandshakeError::Stranger }),
    }
}
