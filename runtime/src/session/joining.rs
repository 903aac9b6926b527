//! How a session begins: the I/O thread, and the network on it.

use std::cell::RefCell;
use std::panic;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, Once, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use gleaner_transport::{JoinError, Joining, Network, memory};

use super::{Inner, Job, Session};
use crate::compute::{self, Compute};
use crate::engine::Engine;
use crate::environment::{Config, ConfigError};
use crate::failure::{Error, Failure, at_fault};
use crate::io::Io;
use crate::mailbox::{Command, mailbox};
use crate::report;
use crate::roles::{RoleMap, Roles};
use crate::seat::Seat;
use crate::server::Server;
use crate::tag::SERVED;
use crate::timeline::Recorder;
use crate::worker::Worker;

impl Session {
    /// Joins the job that the environment describes: as started by `gleaner launch`, torchrun, Slurm or Open MPI.
    /// Without any of them, the job is this one worker.
    ///
    /// # Errors
    /// An environment that is incomplete or contradicts itself, or workers that do not all join within the timeout.
    pub fn join() -> Result<Self, Error> {
        Self::join_as(Config::from_environment()?)
    }

    /// Joins the job that `config` describes.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub fn join_as(config: Config) -> Result<Self, Error> {
        let (rank, timeout, roles) = (config.rank, config.timeout, config.roles);
        let Some(mut network) = config.network() else {
            let alone = memory::networks(1).into_iter().next();
            let Some(alone) = alone else { unreachable!("a network of one worker has one end") };
            return Self::over_as(async { Ok(alone) }, timeout, roles);
        };
        let (_, chosen) = network.choice.resolve(network.is_plain);
        let chosen = chosen.map(|chosen| format!("gleaner: {chosen}"));
        if let Some(chosen) = &chosen
            && rank == Seat::FIRST.0
        {
            report::say(chosen);
        }
        if network.is_plain && rank == Seat::FIRST.0 {
            report::say(
                "gleaner: links are not encrypted (GLEANER_PLAIN): gradients can be read and forged between hosts",
            );
        }
        Self::over_as(gleaner_transport::join(network), timeout, roles).inspect_err(|error| {
            // Where workers differ in it, each says why.
            if let Some(chosen) = chosen.as_ref().filter(|_| rank != Seat::FIRST.0) {
                report::say(chosen);
            }
            if let Error::Join(error) = error
                && let Some(failed) = at_fault(error, rank)
            {
                report::failed(&Failure { rank: failed, step: None, reason: error.to_string() });
            }
        })
    }

    /// Joins over a network of your own, or one of ours. It is made on the session's I/O thread, within a tokio runtime.
    ///
    /// # Errors
    /// A network that cannot be made, or a system that refuses threads.
    pub fn over<N: Network + 'static>(
        network: impl Future<Output = Result<N, JoinError>> + Send + 'static,
        timeout: Duration,
    ) -> Result<Self, Error> {
        Self::over_as(network, timeout, Roles::default())
    }

    /// The same with these roles, which are the same at all ranks.
    ///
    /// # Errors
    /// As [`over`](Self::over), and roles that so few ranks cannot have.
    pub fn over_as<N: Network + 'static>(
        network: impl Future<Output = Result<N, JoinError>> + Send + 'static,
        timeout: Duration,
        roles: Roles,
    ) -> Result<Self, Error> {
        let boxed = |network| Box::new(network) as Box<dyn Network>;
        Self::over_boxed(Box::pin(async move { network.await.map(boxed) }), timeout, roles)
    }

    /// The same of a network of any type, compiled once and not for every type.
    fn over_boxed(
        network: Joining<Box<dyn Network>>,
        timeout: Duration,
        roles: Roles,
    ) -> Result<Self, Error> {
        keep_memory();
        note_panics();
        let (mailbox, commands, bell) = mailbox();
        let refused = |error| Error::System("the worker's threads did not start", error);
        let compute = Compute::new(mailbox.clone());
        let failure: Arc<OnceLock<Failure>> = Arc::default();
        let recorder: Arc<Recorder> = Arc::default();
        let (joined, joins) = mpsc::channel();
        let (shared, computes, failed) = (mailbox.clone(), compute.clone(), Arc::clone(&failure));
        let records = Arc::clone(&recorder);
        let io = move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(joined.send(Err(refused(error)))),
            };
            runtime.block_on(async {
                let network = match network.await {
                    Ok(network) => network,
                    Err(error) => return drop(joined.send(Err(error.into()))),
                };
                let (Roles { servers, colocated, .. }, world_size) = (roles, network.workers());
                let refused = || ConfigError::Servers { servers, world_size, colocated };
                let role_map = match RoleMap::new(world_size, roles).ok_or_else(refused) {
                    Ok(role_map) => role_map,
                    Err(error) => return drop(joined.send(Err(error.into()))),
                };
                let (seat, counters) = (Seat::of(&*network), network.counters());
                let worker = Worker::new(seat.rank.0, role_map, seat.coordinator.0, timeout);
                let shared = (shared, Arc::clone(&bell));
                let io = Io::new(network, seat, worker, shared, computes, records, role_map);
                let mut engine = Engine::new(io, commands, bell, failed, timeout);
                // Before anything comes: a program that leaves at once leaves it, too.
                if role_map.hosted(seat.rank.0).is_some() {
                    engine.command(Command::Add(SERVED, Box::new(Server::new(seat.rank.0, role_map))));
                    engine.command(Server::window());
                }
                let _ = joined.send(Ok((seat, role_map, counters)));
                // A task of its own: it is woken on this thread without a system call.
                let _ = tokio::spawn(engine.run()).await;
            });
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name("gleaner-io".into()).spawn(io).map_err(refused)?;
        let ended = || Error::System("the worker's I/O thread ended", std::io::ErrorKind::BrokenPipe.into());
        let (seat, role_map, counters) = joins.recv().map_err(|_| ended())??;
        let Seat { rank, coordinator, epoch, .. } = seat;
        let inner = Inner {
            job: Job { rank, workers: role_map.workers, role_map, coordinator, epoch, mailbox, failure },
            compute,
            counters,
            recorder,
            numbers: AtomicU32::new(0),
            probed: OnceLock::new(),
            run: OnceLock::new(),
            thread: Mutex::new(Some(thread)),
        };
        Ok(Self { inner: Arc::new(inner), channels: AtomicU64::new(0), reducers: AtomicU64::new(0) })
    }
}

thread_local! {
    /// What the last panic of this thread said.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// What the last panic of this thread said.
pub(super) fn said() -> Option<String> {
    PANIC.with_borrow(Clone::clone)
}

/// Has panics noted, besides what is done with them otherwise, so that a session that is dropped by one can say why.
fn note_panics() {
    static NOTED: Once = Once::new();
    NOTED.call_once(|| {
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            PANIC.with_borrow_mut(|noted| *noted = Some(compute::said(info.payload()).to_owned()));
            hook(info);
        }));
    });
}

/// Lets the allocator keep what it is given back. Every step takes and frees some megabytes; glibc would return them to the
/// system each time and have the pages zeroed again, until the largest block that was ever freed shows it that blocks of
/// that size come and go. So one is freed here, which was never touched. It has no effect on other allocators.
fn keep_memory() {
    const LARGEST: usize = 31 << 20;
    drop(std::hint::black_box(Vec::<u8>::with_capacity(LARGEST)));
}
