//! Rank and peers of this worker, from the launcher that started it.

use std::env::VarError;
use std::fs::FileType;
use std::io::PipeReader;
use std::net::TcpListener;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gleaner_transport::{ChoiceError, JoinConfig, Peer, Secret, SecretError, TransportChoice};

use crate::inherited;
use crate::roles::{OnFailure, RoleMap, Roles};

/// How long a peer may be silent, unless `GLEANER_TIMEOUT` says otherwise.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The timeouts that a job may have.
pub const TIMEOUTS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(1_000_000);

/// The range that a rendezvous port is derived into where the launcher names none: below the ephemeral ports.
const PORTS: std::ops::Range<u32> = 20_000..32_000;

/// A worker's place in a job.
#[derive(Clone, Debug)]
pub struct Config {
    /// From 0 to `world_size` − 1.
    pub rank: u32,
    /// The number of workers, P, and of parameter servers that have ranks of their own.
    pub world_size: u32,
    /// Which of them are servers.
    pub roles: Roles,
    /// Where rank 0 listens, as `host:port`. Not needed for one worker.
    pub rendezvous: Option<String>,
    /// What all workers of the job know and no other process. Not needed for one worker. It is wiped from memory when this is
    /// dropped, and by a session as soon as it has made the job's key of it.
    pub secret: Option<Secret>,
    /// Keeps jobs with the same secret apart: any text, the same at all workers of one.
    pub job: String,
    /// Whether links are not encrypted, on a network that is trusted.
    pub is_plain: bool,
    /// What carries links.
    pub transport: TransportChoice,
    /// After this long without a heartbeat a peer counts as dead.
    pub timeout: Duration,
    /// For rank 0: a socket that is bound to the rendezvous already.
    pub listener: Option<Arc<TcpListener>>,
}

/// An environment that describes no job.
#[derive(thiserror::Error)]
pub enum ConfigError {
    /// A variable that is missing.
    #[error("{starter} set {present} but not {missing}: {todo}")]
    Missing {
        /// What seems to have started this worker.
        starter: &'static str,
        /// The variable that says so.
        present: &'static str,
        /// The variable that is missing.
        missing: &'static str,
        /// What to do.
        todo: &'static str,
    },
    /// A variable that makes no sense.
    #[error("the environment variable {name} is '{value}'; expected {expected}")]
    Value {
        /// Its name.
        name: &'static str,
        /// What it says.
        value: String,
        /// What it should say.
        expected: &'static str,
    },
    /// A rank outside the world.
    #[error("{name} is {rank}, but the world has {world_size} workers: ranks go from 0 to world size - 1")]
    Rank {
        /// The variable.
        name: &'static str,
        /// The rank.
        rank: u32,
        /// The world size.
        world_size: u32,
    },
    /// Servers, and no worker that they could serve.
    #[error(
        "{servers} parameter servers among {world_size} ranks{}; start at least one rank more than there are servers, or with \
         co-located servers as many", if *colocated { ", each co-located with a worker" } else { "" }
    )]
    Servers {
        /// How many servers.
        servers: u32,
        /// How many ranks.
        world_size: u32,
        /// Whether they are co-located with workers.
        colocated: bool,
    },
    /// A descriptor that should have come from the launcher.
    #[error("the descriptor {number} that {name} names {why}")]
    Descriptor {
        /// The variable.
        name: &'static str,
        /// What it says.
        number: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A secret where all children of a process find it.
    #[error(
        "GLEANER_SECRET is not read, since every child of a process has its environment: write the secret to a file of mode \
         0600, and set GLEANER_SECRET_FILE to its path on every worker"
    )]
    InEnvironment,
    /// No secret.
    #[error(
        "no secret is known for this job of {0} workers: create one with `(umask 077; openssl rand -hex 32 > job.secret)` and set \
         GLEANER_SECRET_FILE to its path on every worker"
    )]
    NoSecret(u32),
    /// No id beside a secret that other jobs may have.
    #[error(
        "nothing distinguishes this job from others with the same secret: set GLEANER_JOB to any text, the same on every worker of one \
         start of the job and another for the next, such as train-17"
    )]
    NoJob,
    /// A secret that cannot be used.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// No such transport, or no such option of one.
    #[error(transparent)]
    Transport(#[from] ChoiceError),
}

gleaner_transport::debug_as_sentence!(ConfigError);

type Lookup<'a> = &'a dyn Fn(&str) -> Result<String, VarError>;

impl Config {
    /// From the variables that `gleaner launch` sets (`GLEANER_RANK`, `GLEANER_WORLD_SIZE`, `GLEANER_RENDEZVOUS`,
    /// `GLEANER_SECRET_FD`), or else torchrun's, Open MPI's or Slurm's; then the secret is in the file that
    /// `GLEANER_SECRET_FILE` names, and `GLEANER_RENDEZVOUS` overrides where rank 0 listens. Without any of them
    /// the job has one worker. `GLEANER_TIMEOUT` is a duration such as `30s` or `500ms`. `GLEANER_JOB` overrides the id of
    /// the job that the starter gives, and is needed where none is given; with `GLEANER_PLAIN=1` links are not encrypted.
    /// `GLEANER_TRANSPORT` is what carries links, `GLEANER_VERBS_DEVICE` by which adapter, `GLEANER_SOCKETS` by how many connections
    /// each, and `GLEANER_CONGESTION` how QUIC finds its speed: see [`TransportChoice`].
    /// The last `GLEANER_SERVERS` ranks are parameter servers; with `GLEANER_COLOCATE=1` they live in the processes of the
    /// first ranks instead. `GLEANER_ON_FAILURE` is `stop` or `continue`.
    ///
    /// The secret that `gleaner launch` hands over can be read once, by one process.
    ///
    /// # Errors
    /// Variables that are missing, make no sense or contradict each other, a secret file that others can read, or a secret that
    /// was read before. A secret from a file, and no id that distinguishes the job from others with the same file.
    pub fn from_environment() -> Result<Self, ConfigError> {
        Self::from_lookup(&|name| std::env::var(name))
    }

    /// What the environment says, however the job is started: the timeout, what carries links and whether they are encrypted, and which
    /// ranks are servers; for the rest a job of one worker. For a program that learns its place in a job by other means.
    ///
    /// # Errors
    /// Variables that make no sense.
    pub fn settings() -> Result<Self, ConfigError> {
        Self::settings_of(&|name| std::env::var(name))
    }

    fn settings_of(get: Lookup<'_>) -> Result<Self, ConfigError> {
        let timeout = match get("GLEANER_TIMEOUT") {
            Ok(text) => match gleaner_units::duration(&text) {
                Ok(timeout) if TIMEOUTS.contains(&timeout) => timeout,
                _ => {
                    let expected = "a duration from 100ms to 1000000s, such as 30s or 500ms";
                    return Err(ConfigError::Value { name: "GLEANER_TIMEOUT", value: text, expected });
                }
            },
            Err(_) => TIMEOUT,
        };
        let is_plain = flag(get, "GLEANER_PLAIN")?;
        let transport = TransportChoice::read(|name| get(name).ok())?;
        let roles = roles(get)?;
        Ok(Self { roles, is_plain, transport, ..Self::alone(timeout) })
    }

    fn from_lookup(get: Lookup<'_>) -> Result<Self, ConfigError> {
        let settings = Self::settings_of(get)?;
        let alone = Self { roles: settings.roles, ..Self::alone(settings.timeout) };
        let Some(starter) = STARTERS.iter().find(|s| s.marks.iter().all(|mark| get(mark).is_ok())) else {
            return Ok(alone);
        };
        let number = |name: &'static str| -> Result<u32, ConfigError> {
            let value = get(name).map_err(|_| ConfigError::Missing {
                starter: starter.name,
                present: starter.marks[0],
                missing: name,
                todo: "start all workers in the same way",
            })?;
            let expected = "a number from 0 to 4294967295";
            value.trim().parse().map_err(|_| ConfigError::Value { name, value, expected })
        };
        let (rank, world_size) = (number(starter.rank)?, number(starter.world_size)?);
        if rank >= world_size {
            return Err(ConfigError::Rank { name: starter.rank, rank, world_size });
        }
        alone.role_map(world_size)?;
        if world_size == 1 {
            return Ok(alone);
        }
        let rendezvous = match get("GLEANER_RENDEZVOUS") {
            Ok(rendezvous) => rendezvous,
            Err(_) => (starter.rendezvous)(get).ok_or(ConfigError::Missing {
                starter: starter.name,
                present: starter.marks[0],
                missing: "GLEANER_RENDEZVOUS",
                todo: "set it on every worker to the host of rank 0 and a free port there, such as node1:29400",
            })?,
        };
        let secret = match (get(inherited::SECRET), get("GLEANER_SECRET_FILE"), get("GLEANER_SECRET")) {
            (Ok(number), ..) => {
                let pipe = inherited::take(inherited::SECRET, &number, FileType::is_fifo)?;
                Secret::from_pipe(PipeReader::from(pipe))?
            }
            (_, Ok(path), _) => Secret::from_file(PathBuf::from(path))?,
            (_, _, Ok(_)) => return Err(ConfigError::InEnvironment),
            _ => return Err(ConfigError::NoSecret(world_size)),
        };
        let named = get("GLEANER_JOB").ok().filter(|job| !job.is_empty());
        let job = named.or_else(|| (starter.job)(get)).ok_or(ConfigError::NoJob)?;
        let listener = match get(inherited::LISTENER) {
            Ok(number) if !number.is_empty() => {
                let socket = inherited::take(inherited::LISTENER, &number, FileType::is_socket)?;
                Some(Arc::new(TcpListener::from(socket)))
            }
            _ => None,
        };
        let (rendezvous, secret) = (Some(rendezvous), Some(secret));
        Ok(Self { rank, world_size, rendezvous, secret, job, listener, ..settings })
    }

    /// A job of one worker.
    pub fn alone(timeout: Duration) -> Self {
        let (rendezvous, secret, job, listener) = (None, None, String::new(), None);
        let roles = Roles::default();
        let (is_plain, transport) = (false, TransportChoice::default());
        Self {
            rank: 0,
            world_size: 1,
            roles,
            rendezvous,
            secret,
            job,
            is_plain,
            transport,
            timeout,
            listener,
        }
    }

    fn role_map(&self, world_size: u32) -> Result<RoleMap, ConfigError> {
        let Roles { servers, colocated, .. } = self.roles;
        RoleMap::new(world_size, self.roles).ok_or(ConfigError::Servers { servers, world_size, colocated })
    }

    /// Whether something that starts workers has started this process as one.
    pub fn is_worker() -> bool {
        STARTERS.iter().any(|starter| starter.marks.iter().all(|mark| std::env::var_os(mark).is_some()))
    }

    /// What the network needs to know; None for a job of one worker.
    pub(crate) fn network(self) -> Option<JoinConfig> {
        Some(JoinConfig {
            peer: Peer(self.rank),
            workers: self.world_size,
            epoch: 0,
            card: bytes::Bytes::new(),
            rendezvous: self.rendezvous?,
            secret: self.secret?,
            job: self.job,
            is_plain: self.is_plain,
            choice: self.transport,
            timeout: self.timeout,
            // Another one of the same socket: this configuration may have been cloned.
            listener: self.listener.and_then(|listener| listener.try_clone().ok()),
        })
    }
}

/// Something that starts workers and gives them their ranks.
struct Starter {
    name: &'static str,
    /// What it sets: all of these together, and no other starter does.
    marks: &'static [&'static str],
    rank: &'static str,
    world_size: &'static str,
    /// Where rank 0 can listen, as far as its variables say.
    rendezvous: fn(Lookup<'_>) -> Option<String>,
    /// What distinguishes this job, and this start of it, from others; the same at all its workers.
    job: fn(Lookup<'_>) -> Option<String>,
}

/// In this order: mpirun may run inside a Slurm job and torchrun inside either.
const STARTERS: &[Starter] = &[
    Starter {
        name: "gleaner launch",
        marks: &["GLEANER_RANK"],
        rank: "GLEANER_RANK",
        world_size: "GLEANER_WORLD_SIZE",
        rendezvous: |_| None,
        // What the launcher hands over is fresh for each job.
        job: |get| get(inherited::SECRET).ok().map(|_| String::new()),
    },
    Starter {
        name: "torchrun",
        marks: &["RANK", "WORLD_SIZE", "MASTER_ADDR"],
        rank: "RANK",
        world_size: "WORLD_SIZE",
        // torchrun itself listens on MASTER_PORT.
        rendezvous: |get| {
            let port: u16 = get("MASTER_PORT").ok()?.trim().parse().ok()?;
            Some(format!("{}:{}", get("MASTER_ADDR").ok()?, port.checked_add(1)?))
        },
        // Without --rdzv-id all run ids are "none". The port is one job's at a time.
        job: |get| {
            let (port, restart) =
                (get("MASTER_PORT").ok()?, get("TORCHELASTIC_RESTART_COUNT").unwrap_or_default());
            Some(format!("{}.{port}.{restart}", get("TORCHELASTIC_RUN_ID").ok()?))
        },
    },
    Starter {
        name: "Open MPI",
        marks: &["OMPI_COMM_WORLD_RANK"],
        rank: "OMPI_COMM_WORLD_RANK",
        world_size: "OMPI_COMM_WORLD_SIZE",
        // Only when all workers are on this host is rank 0 known to be.
        rendezvous: |get| {
            let local = get("OMPI_COMM_WORLD_LOCAL_SIZE").ok()?;
            let job = mpi_job(get)?;
            (local == get("OMPI_COMM_WORLD_SIZE").ok()?).then(|| format!("127.0.0.1:{}", port_of(&job)))
        },
        job: mpi_job,
    },
    Starter {
        name: "Slurm",
        // A batch script has a SLURM_PROCID too, but is no step.
        marks: &["SLURM_PROCID", "SLURM_STEP_ID"],
        rank: "SLURM_PROCID",
        world_size: "SLURM_NTASKS",
        rendezvous: |get| {
            let nodes = get("SLURM_STEP_NODELIST").or_else(|_| get("SLURM_JOB_NODELIST")).ok()?;
            Some(format!("{}:{}", first_host(&nodes), port_of(&slurm_step(get)?)))
        },
        // A job that was requeued keeps its number.
        job: |get| {
            let restart = get("SLURM_RESTART_COUNT").unwrap_or_default();
            Some(format!("{}.{restart}", slurm_step(get)?))
        },
    },
];

fn mpi_job(get: Lookup<'_>) -> Option<String> {
    get("PMIX_NAMESPACE").or_else(|_| get("OMPI_MCA_ess_base_jobid")).ok()
}

fn slurm_step(get: Lookup<'_>) -> Option<String> {
    let step = get("SLURM_STEP_ID").unwrap_or_default();
    Some(format!("{}.{step}", get("SLURM_JOB_ID").ok()?))
}

/// A port that all workers of a job derive alike from its name.
fn port_of(job: &str) -> u32 {
    // FNV-1a, folded into the range.
    let hash = job.bytes().fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
    PORTS.start + hash % (PORTS.end - PORTS.start)
}

/// The first host of a Slurm node list such as `gpu[03-05,9],login1`.
fn first_host(nodes: &str) -> String {
    let end = nodes.find([',', '[']).unwrap_or(nodes.len());
    let (prefix, rest) = nodes.split_at(end);
    match rest.strip_prefix('[') {
        Some(range) => {
            let number: &str = range.split([',', '-', ']']).next().unwrap_or_default();
            let suffix =
                range.split(']').nth(1).and_then(|after| after.split(',').next()).unwrap_or_default();
            format!("{prefix}{number}{suffix}")
        }
        None => prefix.to_owned(),
    }
}

fn flag(get: Lookup<'_>, name: &'static str) -> Result<bool, ConfigError> {
    match get(name).as_deref() {
        Err(_) | Ok("" | "0") => Ok(false),
        Ok("1") => Ok(true),
        Ok(other) => Err(ConfigError::Value { name, value: other.to_owned(), expected: "1 or 0" }),
    }
}

fn roles(get: Lookup<'_>) -> Result<Roles, ConfigError> {
    let (servers, failure) = (get("GLEANER_SERVERS").ok(), get("GLEANER_ON_FAILURE").ok());
    let wrong = |name, value: &str, expected| ConfigError::Value { name, value: value.to_owned(), expected };
    let count = |text: String| {
        text.trim().parse().map_err(|_| wrong("GLEANER_SERVERS", &text, "a number from 0 to 4294967295"))
    };
    let on_failure = match failure.as_deref() {
        None | Some("" | "stop") => OnFailure::Stop,
        Some("continue") => OnFailure::Continue,
        Some(other) => return Err(wrong("GLEANER_ON_FAILURE", other, "stop or continue")),
    };
    let servers = servers.filter(|text| !text.is_empty()).map_or(Ok(0), count)?;
    Ok(Roles { servers, colocated: flag(get, "GLEANER_COLOCATE")?, on_failure })
}

#[cfg(test)]
mod tests;
