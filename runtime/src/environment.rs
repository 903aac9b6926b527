//! Who this worker is, from whatever started it.

use std::env::VarError;
use std::path::PathBuf;
use std::time::Duration;

use gleaner_transport::{Peer, Secret, SecretError, tcp};

/// How long a peer may be silent, unless `GLEANER_TIMEOUT` says otherwise.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The range that a rendezvous port is derived into where the launcher names none: below the ephemeral ports.
const PORTS: std::ops::Range<u32> = 20_000..32_000;

/// A worker's place in a job.
#[derive(Clone, Debug)]
pub struct Config {
    /// From 0 to `world_size` − 1.
    pub rank: u32,
    /// The number of workers, P.
    pub world_size: u32,
    /// Where rank 0 listens, as `host:port`. Not needed for one worker.
    pub rendezvous: Option<String>,
    /// What all workers of the job know and nobody else. Not needed for one worker.
    pub secret: Option<Secret>,
    /// After this long without a sign of life a peer counts as dead.
    pub timeout: Duration,
}

/// An environment that describes no job.
#[derive(Debug, thiserror::Error)]
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
    /// No secret.
    #[error(
        "no secret is known for this job of {0} workers: create one with `(umask 077; openssl rand -hex 32 > job.secret)` and set \
         GLEANER_SECRET_FILE to its path on every worker"
    )]
    NoSecret(u32),
    /// A secret that cannot be used.
    #[error(transparent)]
    Secret(#[from] SecretError),
}

type Lookup<'a> = &'a dyn Fn(&str) -> Result<String, VarError>;

impl Config {
    /// From the variables that `gleaner launch` sets (`GLEANER_RANK`, `GLEANER_WORLD_SIZE`, `GLEANER_RENDEZVOUS`,
    /// `GLEANER_SECRET`), or else torchrun's, Open MPI's or Slurm's; then the secret is in the file that
    /// `GLEANER_SECRET_FILE` names, and `GLEANER_RENDEZVOUS` overrides where rank 0 listens. Without any of them
    /// the job has one worker. `GLEANER_TIMEOUT` is a duration such as `30s` or `500ms`.
    ///
    /// # Errors
    /// Variables that are missing, make no sense or contradict each other, or a secret file that others can read.
    pub fn from_environment() -> Result<Self, ConfigError> {
        Self::from_lookup(&|name| std::env::var(name))
    }

    fn from_lookup(get: Lookup<'_>) -> Result<Self, ConfigError> {
        let timeout = match get("GLEANER_TIMEOUT") {
            Ok(text) => duration(&text).ok_or(ConfigError::Value {
                name: "GLEANER_TIMEOUT",
                value: text,
                expected: "a duration of at least 100ms, such as 30s or 500ms",
            })?,
            Err(_) => TIMEOUT,
        };
        let Some(starter) = STARTERS.iter().find(|s| s.marks.iter().all(|mark| get(mark).is_ok())) else {
            return Ok(Self { rank: 0, world_size: 1, rendezvous: None, secret: None, timeout });
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
        if world_size == 1 {
            return Ok(Self { rank, world_size, rendezvous: None, secret: None, timeout });
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
        let secret = match (get("GLEANER_SECRET"), get("GLEANER_SECRET_FILE")) {
            (Ok(hex), _) => Secret::from_hex(&hex)?,
            (_, Ok(path)) => Secret::from_file(PathBuf::from(path))?,
            _ => return Err(ConfigError::NoSecret(world_size)),
        };
        Ok(Self { rank, world_size, rendezvous: Some(rendezvous), secret: Some(secret), timeout })
    }

    /// Whether something that starts workers has started this process as one.
    pub fn is_worker() -> bool {
        STARTERS.iter().any(|starter| starter.marks.iter().all(|mark| std::env::var_os(mark).is_some()))
    }

    /// What the network needs to know; None for a job of one worker.
    pub(crate) fn tcp(&self) -> Option<tcp::TcpConfig> {
        Some(tcp::TcpConfig {
            peer: Peer(self.rank),
            workers: self.world_size,
            rendezvous: self.rendezvous.clone()?,
            secret: self.secret.clone()?,
            timeout: self.timeout,
            listener: None,
        })
    }
}

/// Something that starts workers and tells them who they are.
struct Starter {
    name: &'static str,
    /// What it sets: all of these together, and no other starter does.
    marks: &'static [&'static str],
    rank: &'static str,
    world_size: &'static str,
    /// Where rank 0 can listen, as far as its variables tell.
    rendezvous: fn(Lookup<'_>) -> Option<String>,
}

/// In this order: mpirun may run inside a Slurm job and torchrun inside either.
const STARTERS: &[Starter] = &[
    Starter {
        name: "gleaner launch",
        marks: &["GLEANER_RANK"],
        rank: "GLEANER_RANK",
        world_size: "GLEANER_WORLD_SIZE",
        rendezvous: |_| None,
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
    },
    Starter {
        name: "Open MPI",
        marks: &["OMPI_COMM_WORLD_RANK"],
        rank: "OMPI_COMM_WORLD_RANK",
        world_size: "OMPI_COMM_WORLD_SIZE",
        // Only when all workers are on this host is rank 0 known to be.
        rendezvous: |get| {
            let local = get("OMPI_COMM_WORLD_LOCAL_SIZE").ok()?;
            let job = get("PMIX_NAMESPACE").or_else(|_| get("OMPI_MCA_ess_base_jobid")).ok()?;
            (local == get("OMPI_COMM_WORLD_SIZE").ok()?).then(|| format!("127.0.0.1:{}", port_of(&job)))
        },
    },
    Starter {
        name: "Slurm",
        // A batch script has a SLURM_PROCID too, but is no step.
        marks: &["SLURM_PROCID", "SLURM_STEP_ID"],
        rank: "SLURM_PROCID",
        world_size: "SLURM_NTASKS",
        rendezvous: |get| {
            let nodes = get("SLURM_STEP_NODELIST").or_else(|_| get("SLURM_JOB_NODELIST")).ok()?;
            let step = get("SLURM_STEP_ID").unwrap_or_default();
            let job = get("SLURM_JOB_ID").ok()?;
            Some(format!("{}:{}", first_host(&nodes), port_of(&format!("{job}.{step}"))))
        },
    },
];

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

/// `30s`, `500ms`, or seconds without a unit; at least 100 ms.
fn duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let (number, unit) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => (number, 1e-3),
        (None, Some(number)) => (number, 1.0),
        (None, None) => (text, 1.0),
    };
    let seconds = number.trim().parse::<f64>().ok()? * unit;
    (0.1..=1e6).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
        Config::from_lookup(&|name| {
            let found = variables.iter().find(|(n, _)| *n == name);
            found.map(|(_, v)| (*v).to_owned()).ok_or(VarError::NotPresent)
        })
    }

    const SECRET: (&str, &str) =
        ("GLEANER_SECRET", "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff");

    #[test]
    fn every_starter_is_understood() {
        let alone = config(&[]).unwrap();
        assert_eq!((alone.rank, alone.world_size, alone.timeout), (0, 1, TIMEOUT));

        let torchrun =
            [("RANK", "3"), ("WORLD_SIZE", "8"), ("MASTER_ADDR", "node1"), ("MASTER_PORT", "29400"), SECRET];
        let torchrun = config(&torchrun).unwrap();
        assert_eq!((torchrun.rank, torchrun.rendezvous.as_deref()), (3, Some("node1:29401")));

        let slurm = [
            ("SLURM_PROCID", "1"),
            ("SLURM_NTASKS", "2"),
            ("SLURM_JOB_ID", "77"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_STEP_NODELIST", "gpu[03-05],login1"),
            ("GLEANER_TIMEOUT", "500ms"),
            SECRET,
        ];
        let slurm = config(&slurm).unwrap();
        assert!(slurm.rendezvous.unwrap().starts_with("gpu03:2"));
        assert_eq!(slurm.timeout, Duration::from_millis(500));

        let mut mpi = vec![
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("PMIX_NAMESPACE", "1234"),
            ("SLURM_PROCID", "0"),
            SECRET,
        ];
        assert!(config(&mpi).unwrap().rendezvous.unwrap().starts_with("127.0.0.1:2"));
        mpi[2].1 = "1";
        let error = config(&mpi).unwrap_err().to_string();
        assert!(error.contains("Open MPI") && error.contains("GLEANER_RENDEZVOUS"), "{error}");
        mpi.push(("GLEANER_RENDEZVOUS", "10.0.0.1:5000"));
        assert_eq!(config(&mpi).unwrap().rendezvous.as_deref(), Some("10.0.0.1:5000"));
    }

    #[test]
    fn variables_that_anybody_may_export_start_nothing() {
        assert_eq!(config(&[("MASTER_ADDR", "localhost")]).unwrap().world_size, 1);
        assert_eq!(config(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")]).unwrap().world_size, 1);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let sentence = |variables: &[(&str, &str)]| config(variables).unwrap_err().to_string();
        let missing = sentence(&[("GLEANER_RANK", "0")]);
        assert!(missing.contains("GLEANER_WORLD_SIZE"), "{missing}");
        let outside = sentence(&[("GLEANER_RANK", "4"), ("GLEANER_WORLD_SIZE", "4")]);
        assert!(outside.contains("is 4") && outside.contains("0 to world size - 1"), "{outside}");
        let rank = sentence(&[("GLEANER_RANK", "two"), ("GLEANER_WORLD_SIZE", "4")]);
        assert!(rank.contains("'two'"), "{rank}");
        let job = [("GLEANER_RANK", "0"), ("GLEANER_WORLD_SIZE", "4"), ("GLEANER_RENDEZVOUS", "a:1")];
        let secret = sentence(&job);
        assert!(secret.contains("GLEANER_SECRET_FILE"), "{secret}");
        let timeout = sentence(&[("GLEANER_TIMEOUT", "soon")]);
        assert!(timeout.contains("'soon'"), "{timeout}");
    }

    #[test]
    fn the_first_host_of_a_node_list() {
        for (list, host) in [
            ("n1", "n1"),
            ("n1,n2", "n1"),
            ("gpu[03-05,9],x", "gpu03"),
            ("a[1]-ib,b", "a1-ib"),
            ("r[7,9]", "r7"),
        ] {
            assert_eq!(first_host(list), host, "{list}");
        }
    }
}
