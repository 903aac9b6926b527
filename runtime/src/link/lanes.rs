//! Bags that wait to be sent, and which of them goes first.

use std::collections::{HashMap, VecDeque};

use gleaner_transport::{Message, Tag};

use super::{Flow, cost};
use crate::tag::{PROBE, Topic};

/// Bags that wait, by tag.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    /// In the order of their tags. None is empty.
    lanes: Vec<(Tag, VecDeque<Message>)>,
    /// Memory for more.
    spare: Vec<VecDeque<Message>>,
}

impl Lanes {
    pub(super) fn push(&mut self, message: Message) {
        let at = match self.lanes.binary_search_by_key(&message.tag, |(tag, _)| *tag) {
            Ok(at) => at,
            Err(at) => {
                self.lanes.insert(at, (message.tag, self.spare.pop().unwrap_or_default()));
                at
            }
        };
        self.lanes[at].1.push_back(message);
    }

    /// The first message that its flow has credit for.
    pub(super) fn pop(&mut self, flows: &mut HashMap<u32, Flow>) -> Option<Message> {
        for at in 0..self.lanes.len() {
            let (tag, queue) = &mut self.lanes[at];
            let flow = flows.entry(gradient(*tag)).or_default();
            let fits = |next: &Message| flow.sent + cost(&next.payload) <= flow.allowed;
            let Some(message) = queue.front().is_some_and(fits).then(|| queue.pop_front()).flatten() else {
                continue;
            };
            flow.sent += cost(&message.payload);
            if queue.is_empty() {
                self.retire(at);
            }
            return Some(message);
        }
        None
    }

    pub(super) fn discard(&mut self, tag: Tag) {
        if let Ok(at) = self.lanes.binary_search_by_key(&tag, |(tag, _)| *tag) {
            self.lanes[at].1.clear();
            self.retire(at);
        }
    }

    fn retire(&mut self, at: usize) {
        let (_, queue) = self.lanes.remove(at);
        if self.spare.len() < 8 {
            self.spare.push(queue);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Whether anything of a gradient waits.
    pub(super) fn hold(&self, of: u32) -> bool {
        self.lanes.iter().any(|(tag, _)| gradient(*tag) == of)
    }

    /// What all of it takes of credits, in bytes.
    pub(super) fn waiting(&self) -> u64 {
        self.lanes.iter().flat_map(|(_, queue)| queue).map(|message| cost(&message.payload)).sum()
    }
}

/// Whose credit a bag with this tag takes.
fn gradient(tag: Tag) -> u32 {
    match Topic::of(tag) {
        Some(Topic::Bags(id)) => id.gradient,
        _ => PROBE,
    }
}
