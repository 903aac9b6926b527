//! What happens in a network, until its owner asks: links that were opened or could not be, one for each peer at most and for each that
//! was asked for, and callers that were refused, of whom as many come as like to. Of those a bounded number waits.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::LinkEvent;

/// Callers that were refused and wait to be reported. Of more only the number is.
const REFUSED: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Events(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<LinkEvent>,
    /// How many of them are callers that were refused, and how many more were since.
    refused: usize,
    more: u64,
    owner: Option<Waker>,
    is_closed: bool,
}

impl Events {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports one to the owner.
    pub(crate) fn report(&self, event: LinkEvent) {
        let owner = {
            let mut queue = self.queue();
            if queue.is_closed {
                return;
            }
            if matches!(event, LinkEvent::Refused { .. }) {
                if queue.refused == REFUSED {
                    queue.more += 1;
                    return;
                }
                queue.refused += 1;
            }
            queue.waiting.push_back(event);
            queue.owner.take()
        };
        owner.into_iter().for_each(Waker::wake);
    }

    /// The owner has gone: what waits is dropped, and so is what comes later. A link that was not taken is closed by that.
    pub(crate) fn close(&self) {
        let waiting = {
            let mut queue = self.queue();
            queue.is_closed = true;
            std::mem::take(&mut queue.waiting)
        };
        drop(waiting);
    }

    /// The next one.
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<LinkEvent> {
        let mut queue = self.queue();
        let Some(mut event) = queue.waiting.pop_front() else {
            queue.owner = Some(context.waker().clone());
            return Poll::Pending;
        };
        if let LinkEvent::Refused { reason, .. } = &mut event {
            queue.refused -= 1;
            let more = std::mem::take(&mut queue.more);
            if more > 0 {
                reason.push_str(&format!("; so were {more} callers more"));
            }
        }
        Poll::Ready(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OpenError, Peer};

    fn refused(number: u32) -> LinkEvent {
        LinkEvent::Refused { address: format!("10.0.0.1:{number}"), reason: "it is unknown".into() }
    }

    #[test]
    fn callers_that_were_turned_away_wait_in_a_bounded_number_and_are_all_counted() {
        let (events, mut context) = (Events::default(), Context::from_waker(Waker::noop()));
        assert!(events.poll(&mut context).is_pending());
        (0..1_000_000).for_each(|number| events.report(refused(number)));
        events.report(LinkEvent::Failed { peer: Peer(3), error: OpenError::Itself { peer: Peer(3) } });
        let mut heard = Vec::new();
        while let Poll::Ready(event) = events.poll(&mut context) {
            heard.push(event);
        }
        assert_eq!(heard.len(), REFUSED + 1);
        let reasons: Vec<_> = heard
            .iter()
            .filter_map(|event| match event {
                LinkEvent::Refused { reason, .. } => Some(reason.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(reasons[0], "it is unknown; so were 999936 callers more");
        assert!(reasons[1..].iter().all(|reason| *reason == "it is unknown"));
        assert!(matches!(heard.last(), Some(LinkEvent::Failed { peer: Peer(3), .. })), "never left out");
        events.report(refused(1));
        assert!(matches!(events.poll(&mut context), Poll::Ready(LinkEvent::Refused { .. })));
    }

    #[test]
    fn what_waits_when_the_owner_is_gone_is_dropped_and_so_is_what_comes_later() {
        let (events, mut context) = (Events::default(), Context::from_waker(Waker::noop()));
        events.report(refused(1));
        events.close();
        events.report(refused(2));
        assert!(events.poll(&mut context).is_pending());
    }
}
