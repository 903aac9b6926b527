//! A worker's end of its links with servers, on the I/O thread: it sends what the trainer's side has made, and hands on what comes.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use bytes::Bytes;
use gleaner_transport::{Message as Packet, Peer};

use super::control::{Answer, Ask};
use super::{PUSH, REPLY};
use crate::algorithm::{Actor, Waiting, left};
use crate::failure::Failure;
use crate::io::Io;
use crate::link::cost;
use crate::roles::RoleMap;
use crate::steps::Stand;
use crate::tag::{StepId, Topic};

/// See the module.
pub(crate) struct Client {
    role_map: RoleMap,
    units: usize,
    came: mpsc::Sender<Came>,
    /// How many messages are still being made.
    open: Arc<AtomicUsize>,
    /// By server, the step that may be pushed, and what waits for that.
    granted: Vec<Option<u64>>,
    held: Vec<VecDeque<(u64, Packet)>>,
    /// Whether the trainer needs nothing more, and the servers know.
    is_over: bool,
    is_reported: bool,
}

/// What the trainer's side gets.
pub(crate) enum Came {
    Payload(Peer, StepId, Bytes),
    Failed(Failure),
}

/// What it gets from the trainer's side and from compute threads.
pub(crate) enum Message {
    /// To a server; what belongs to a step that is to be granted waits for that.
    Send { server: u32, waits_for: Option<u64>, packets: Vec<Packet> },
    /// What was being made is made and was sent.
    Made,
    /// Bytes of a number were taken in.
    Took(Vec<(Peer, u32, u64)>),
    /// Nothing more is needed.
    Over,
}

impl Client {
    pub(crate) fn new(
        role_map: RoleMap,
        units: usize,
        came: mpsc::Sender<Came>,
        open: Arc<AtomicUsize>,
    ) -> Self {
        let servers = role_map.roles.servers as usize;
        let (granted, held) = (vec![None; servers], (0..servers).map(|_| VecDeque::new()).collect());
        Self { role_map, units, came, open, granted, held, is_over: false, is_reported: false }
    }

    fn servers(&self) -> impl Iterator<Item = (u32, Peer)> + use<> {
        let role_map = self.role_map;
        (0..role_map.roles.servers).map(move |server| (server, role_map.host(server)))
    }

    /// A server may have what waits for this step.
    fn granted(&mut self, server: u32, step: u64, io: &mut Io) {
        self.granted[server as usize] = Some(step);
        let held = &mut self.held[server as usize];
        while held.front().is_some_and(|(waits_for, _)| *waits_for == step)
            && let Some((_, packet)) = held.pop_front()
        {
            io.send(self.role_map.host(server), packet);
        }
    }

    /// Notifies the servers that nothing more is needed, once all is made.
    fn look_for_end(&mut self, io: &mut Io) {
        if self.is_over && !self.is_reported && self.open.load(Ordering::Acquire) == 0 {
            self.is_reported = true;
            let tag = Topic::Bags(StepId::new(io.epoch, PUSH, 0)).tag();
            self.servers().for_each(|(_, host)| io.send(host, Packet { tag, payload: Ask::Done.encode() }));
        }
    }
}

impl Actor for Client {
    fn next(&self) -> (Vec<StepId>, bool) {
        (Vec::new(), false)
    }

    fn expects(&self, id: StepId, _: &Io) -> bool {
        id.gradient - REPLY <= self.units as u32
    }

    fn handle(&mut self, message: Box<dyn Any + Send>, io: &mut Io) {
        let Ok(message) = message.downcast::<Message>() else { return };
        match *message {
            Message::Send { server, waits_for, packets } => {
                for packet in packets {
                    match waits_for.filter(|step| self.granted[server as usize] != Some(*step)) {
                        Some(step) => self.held[server as usize].push_back((step, packet)),
                        None => io.send(self.role_map.host(server), packet),
                    }
                }
            }
            Message::Made => drop(self.open.fetch_sub(1, Ordering::Release)),
            Message::Took(taken) => {
                taken.into_iter().for_each(|(peer, number, bytes)| io.consume(peer, number, bytes))
            }
            Message::Over => self.is_over = true,
        }
        self.look_for_end(io);
    }

    fn arrived(&mut self, id: StepId, from: Peer, payload: Bytes, io: &mut Io) {
        let Some((server, _)) = self.servers().find(|(_, host)| *host == from) else {
            let reason =
                "it violated the protocol: it answers like a parameter server, which it is not".into();
            return io.fail(Failure { rank: from.0, step: None, reason });
        };
        if id.gradient == REPLY
            && let Some(Answer::Granted { step }) = Answer::decode(&payload, self.units)
        {
            io.consume(from, REPLY, cost(&payload));
            return self.granted(server, step, io);
        }
        // The trainer's side has perhaps ended.
        let _ = self.came.send(Came::Payload(from, id, payload));
    }

    fn stand(&mut self, _: StepId, _: Stand, _: &mut Io) {}

    fn left(&mut self, peer: Peer, io: &mut Io) {
        if !self.is_reported && self.servers().any(|(_, host)| host == peer) {
            io.fail(left(peer.0));
        }
    }

    fn fail(&mut self, failure: &Failure) {
        let _ = self.came.send(Came::Failed(failure.clone()));
        (self.is_over, self.is_reported) = (true, true);
        self.open.store(0, Ordering::Release);
    }

    fn waits(&self) -> Vec<Waiting> {
        Vec::new()
    }

    fn is_idle(&self) -> bool {
        self.is_reported
    }
}
