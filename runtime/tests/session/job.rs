//! Starting a job of several workers in one process.

use std::net::TcpListener;
use std::sync::Mutex;
use std::time::Duration;

use gleaner_runtime::{Config, Roles, Session};
use gleaner_statistics::random::Generator;
use gleaner_transport::{Network, Secret, Transport, TransportChoice, adverse, memory};

/// Long enough for a busy machine, short enough that a test which waits for it ends.
pub const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug)]
pub enum Over {
    Memory,
    Tcp,
    Quic,
    /// Messages overtake those of other lanes, and payloads lie in memory of the network.
    Adverse,
}

pub const NETWORKS: [Over; 4] = [Over::Memory, Over::Tcp, Over::Quic, Over::Adverse];

/// Runs `worker` on every rank of a new job, and gives what each returned.
pub fn run<T: Send>(over: Over, workers: u32, worker: impl Fn(Session) -> T + Sync) -> Vec<T> {
    run_as(over, workers, Roles::default(), worker)
}

/// The same on this many ranks, of which some may be parameter servers.
pub fn run_as<T: Send>(
    over: Over,
    workers: u32,
    roles: Roles,
    worker: impl Fn(Session) -> T + Sync,
) -> Vec<T> {
    let returned: Vec<Mutex<Option<T>>> = (0..workers).map(|_| Mutex::default()).collect();
    on_each(over, workers, roles, &|rank, session| {
        let value = worker(session);
        *returned[rank].lock().unwrap() = Some(value);
    });
    returned.into_iter().map(|value| value.into_inner().unwrap().unwrap()).collect()
}

/// Runs the same on every rank. Not generic, so that it is compiled once and not for the closure of every test.
fn on_each(over: Over, workers: u32, roles: Roles, worker: &(dyn Fn(usize, Session) + Sync)) {
    std::thread::scope(|scope| {
        let spawned = |(rank, join): (usize, Join)| scope.spawn(move || worker(rank, join()));
        let threads: Vec<_> = ranks(over, workers, roles).into_iter().enumerate().map(spawned).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// Joins as one rank.
type Join = Box<dyn FnOnce() -> Session + Send>;

/// How each rank of a new job joins it.
fn ranks(over: Over, workers: u32, roles: Roles) -> Vec<Join> {
    fn joins<N: Network + 'static>(networks: impl Iterator<Item = N>, roles: Roles) -> Vec<Join> {
        networks
            .map(|network| -> Join {
                Box::new(move || Session::over_as(async { Ok(network) }, TIMEOUT, roles).unwrap())
            })
            .collect()
    }
    match over {
        Over::Memory => joins(memory::networks(workers).into_iter(), roles),
        Over::Adverse => {
            let networks = memory::networks(workers).into_iter();
            let adverse = |network: memory::MemoryNetwork| {
                let seed = u64::from(network.peer().0) + 1;
                adverse::network(network, seed)
            };
            joins(networks.map(adverse), roles)
        }
        Over::Tcp | Over::Quic => configs(workers, TIMEOUT)
            .into_iter()
            .map(|config| Config { roles, transport: over.choice(), ..config })
            .map(|config| -> Join { Box::new(move || Session::join_as(config).unwrap()) })
            .collect(),
    }
}

impl Over {
    fn choice(self) -> TransportChoice {
        if matches!(self, Over::Quic) { Transport::Quic } else { Transport::Tcp }.into()
    }
}

/// The configurations of all workers of a new job on this machine.
pub fn configs(workers: u32, timeout: Duration) -> Vec<Config> {
    let rendezvous = format!("127.0.0.1:{}", free_port());
    let secret = Secret::random().unwrap();
    (0..workers)
        .map(|rank| Config {
            rank,
            world_size: workers,
            roles: Roles::default(),
            rendezvous: Some(rendezvous.clone()),
            secret: Some(secret.clone()),
            job: "17".to_owned(),
            is_plain: false,
            transport: TransportChoice::default(),
            timeout,
            listener: None,
        })
        .collect()
}

/// A port below the ephemeral ones, which outgoing connections never take, tried out before it is used.
fn free_port() -> u16 {
    use std::sync::atomic::{AtomicU16, Ordering};
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let offset = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 10_000 + (std::process::id() as u16).wrapping_mul(97).wrapping_add(offset) % 20_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// A gradient that depends on rank and step: heavy-tailed, a part of it shared between the ranks.
pub fn gradient(n: usize, rank: usize, step: u64) -> Vec<f32> {
    let mut shared = Generator::new(step, "gradient of all ranks", 0);
    let mut own = Generator::new(step, "gradient", rank as u64);
    (0..n).map(|_| shared.symmetric().powi(3) + own.symmetric().powi(3)).collect()
}
