//! The first links, those to rank 0: all of them come up or none does, and rank 0 tells all which. So a way between rank 0 and one
//! worker that takes no datagrams is reported by all, and no worker takes the end of its own link for the cause.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use quinn::Connection;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use super::negotiation::Negotiation;
use super::network::{Shared, agree, hear, out_of_turn, say};
use crate::tcp::cause::panicked;
use crate::tcp::{HOST, JoinError};
use crate::{Link, LinkEvent, OpenError, Peer, Transport, conformance};

/// A connection that both ends have agreed on, and the link of TCP over which they have.
pub(super) type Agreed = (Connection, Box<dyn Link>);

/// Makes the first links. At the end of them all workers know that all are there.
///
/// # Errors
/// At rank 0 the first that did not come about; at the others what rank 0 says, or that it says nothing.
pub(super) async fn gather(shared: &Arc<Shared>, linger: Duration) -> Result<Vec<Agreed>, JoinError> {
    if shared.peer == HOST { host(shared, linger).await } else { other(shared).await.map(|only| vec![only]) }
}

fn unlinked(shared: &Shared, other: Peer, error: OpenError) -> JoinError {
    JoinError::Unlinked { peer: shared.peer, other, transport: Transport::Quic, error }
}

/// Rank 0's part.
async fn host(shared: &Arc<Shared>, linger: Duration) -> Result<Vec<Agreed>, JoinError> {
    let until = Instant::now() + shared.timeout;
    let (stop, stopped) = watch::channel(false);
    let (mut agreeing, mut agreed, mut controls) = (JoinSet::new(), Vec::new(), Vec::new());
    let mut missing: BTreeSet<_> = (1..shared.workers).map(Peer).collect();
    let mut failed = None;
    while let Some(next) = missing.first().copied()
        && failed.is_none()
    {
        let step = async {
            tokio::select! {
                event = shared.base.event() => Progress::Event(event),
                Some(ended) = agreeing.join_next(), if !agreeing.is_empty() => Progress::Ended(ended),
            }
        };
        match timeout_at(until, step).await {
            Ok(Progress::Event(LinkEvent::Up(control))) => {
                agreeing.spawn(agree_until(Arc::clone(shared), control, stopped.clone()));
            }
            Ok(Progress::Event(LinkEvent::Failed { peer, error })) => failed = Some((peer, error)),
            Ok(Progress::Event(other)) => shared.base.events.report(other),
            Ok(Progress::Ended(Ok((control, Ok(connection))))) => {
                missing.remove(&control.peer());
                agreed.push((connection, control));
            }
            Ok(Progress::Ended(Ok((control, Err(error))))) => {
                failed = Some((control.peer(), error));
                controls.push(control);
            }
            Ok(Progress::Ended(ended)) => {
                let reason = panicked(ended).unwrap_or_else(|| "it was given up".into());
                return Err(JoinError::Panicked { reason });
            }
            Err(_) => {
                let (address, after, last) = (next.to_string(), shared.timeout, "it did not join".to_owned());
                failed = Some((next, OpenError::TimedOut { peer: next, address, after, last }));
            }
        }
    }
    let Some((other, error)) = failed else {
        let notified = async {
            for (_, control) in &mut agreed {
                // One that broke since is reported by its link.
                let _ = say(&mut **control, &Negotiation::Complete).await;
            }
        };
        let _ = timeout(linger, notified).await;
        return Ok(agreed);
    };
    // Those in the middle of it are notified, too.
    let _ = stop.send(true);
    while let Some(ended) = agreeing.join_next().await {
        controls.extend(ended.map(|(control, _)| control));
    }
    controls.extend(agreed.into_iter().map(|(_, control)| control));
    let error = unlinked(shared, other, error);
    let _ = timeout(linger, refuse_all(controls, &Negotiation::Refused(error.to_string()))).await;
    Err(error)
}

/// What happens at rank 0.
enum Progress<T> {
    Event(LinkEvent),
    Ended(T),
}

/// Agrees with one worker, unless it is stopped.
async fn agree_until(
    shared: Arc<Shared>,
    mut control: Box<dyn Link>,
    mut stopped: watch::Receiver<bool>,
) -> (Box<dyn Link>, Result<Connection, OpenError>) {
    let peer = control.peer();
    let agreed = tokio::select! {
        agreed = agree(&shared, &mut *control) => agreed,
        _ = stopped.wait_for(|is_stopped| *is_stopped) => Err(OpenError::Gone { peer }),
    };
    (control, agreed)
}

/// Notifies all of these that there will be no link, and waits until they have left: a connection that ends with unread bytes takes
/// what was said with it.
async fn refuse_all(mut controls: Vec<Box<dyn Link>>, word: &Negotiation) {
    for control in &mut controls {
        let _ = say(&mut **control, word).await;
    }
    for control in &mut controls {
        while conformance::receive(&mut **control).await.is_ok() {}
    }
}

/// The part of all others.
async fn other(shared: &Shared) -> Result<Agreed, JoinError> {
    let after = shared.timeout * 3 / 2;
    let until = Instant::now() + after;
    let none = || {
        let (address, last) = (HOST.to_string(), "its link did not come up".to_owned());
        OpenError::TimedOut { peer: HOST, address, after, last }
    };
    let mut control = loop {
        match timeout_at(until, shared.base.event()).await {
            // The first is the one that the rendezvous left.
            Ok(LinkEvent::Up(control)) => break control,
            Ok(LinkEvent::Failed { peer, error }) => return Err(unlinked(shared, peer, error)),
            Ok(other) => shared.base.events.report(other),
            Err(_) => return Err(unlinked(shared, HOST, none())),
        }
    };
    let agreed = match agree(shared, &mut *control).await {
        Err(OpenError::Refused { reason: sentence, .. }) => return Err(JoinError::Failed { sentence }),
        agreed => agreed,
    };
    let agreement = timeout_at(until, admission(&mut *control, agreed.as_ref().err())).await;
    match (agreement, agreed) {
        (Ok(Err(OpenError::Refused { reason: sentence, .. })), _) => Err(JoinError::Failed { sentence }),
        (_, Err(error)) | (Ok(Err(error)), _) => Err(unlinked(shared, HOST, error)),
        (Ok(Ok(())), Ok(connection)) => Ok((connection, control)),
        (Err(_), Ok(_)) => {
            let address = control.address().map_or_else(|| HOST.to_string(), |address| address.to_string());
            Err(JoinError::NoOutcome { address, after })
        }
    }
}

/// What rank 0 sends to all. A worker without a link to it says so first.
async fn admission(control: &mut dyn Link, failed: Option<&OpenError>) -> Result<(), OpenError> {
    if let Some(error) = failed {
        say(control, &Negotiation::Refused(error.to_string())).await?;
    }
    loop {
        match hear(control).await? {
            Negotiation::Complete => return Ok(()),
            // It said so before it knew.
            _ if failed.is_some() => {}
            _ => return Err(out_of_turn(control.peer())),
        }
    }
}
