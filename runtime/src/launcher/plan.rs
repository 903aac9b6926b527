//! Which rank runs where, and with which environment.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;

use gleaner_transport::{Secret, TransportChoice};
use zeroize::Zeroizing;

use super::listener::Listener;
use super::{Host, Job, LaunchError, wrapper};
use crate::roles::{OnFailure, RoleMap, Roles};
use crate::{inherited, report};

/// Ports below the range that systems give out by themselves, so that no outgoing connection takes one first.
const PORTS: std::ops::RangeInclusive<u16> = 20000..=32767;

/// Set by the launcher for every worker, and by nothing else.
const RESERVED: [&str; 11] = [
    "GLEANER_RANK",
    "GLEANER_WORLD_SIZE",
    "GLEANER_LOCAL_RANK",
    "GLEANER_LOCAL_WORLD_SIZE",
    "GLEANER_RENDEZVOUS",
    inherited::SECRET,
    inherited::LISTENER,
    report::LAUNCHER,
    "GLEANER_SERVERS",
    "GLEANER_COLOCATE",
    "GLEANER_ON_FAILURE",
];

/// Handed on from the launcher's own environment, which an agent such as ssh does not carry.
const INHERITED: [&str; 4] = ["RAYON_NUM_THREADS", "OMP_NUM_THREADS", "GLEANER_TIMEOUT", "GLEANER_PLAIN"];

/// One worker's place.
pub(super) struct Seat {
    pub rank: u32,
    /// The host's name in the hostfile.
    pub host: String,
    /// The host's place in the hostfile.
    pub host_index: usize,
    /// The command that starts a shell there.
    pub command: Vec<String>,
    /// Where the program runs.
    pub directory: String,
    /// What that shell reads: the secret that it hands to the worker, and the rest.
    pub script: [Zeroizing<Vec<u8>>; 2],
    /// For rank 0 on this machine, where the workers find each other.
    pub listener: Option<Listener>,
}

/// The whole job, worker by worker in rank order.
pub(super) fn seats(job: &Job) -> Result<Vec<Seat>, LaunchError> {
    check_program(&job.program)?;
    check_environment(&job.env)?;
    let world: u32 = job.hosts.iter().map(|host| host.slots).sum();
    let Roles { servers, colocated, on_failure } = job.roles;
    if world > 0 && RoleMap::new(world, job.roles).is_none() {
        return Err(LaunchError::Servers { servers, processes: world, colocated });
    }
    let first = job.hosts.iter().find(|host| host.slots > 0).ok_or(LaunchError::NoWorkers)?;
    if job.agent.is_empty() && job.hosts.len() > 1 {
        return Err(LaunchError::NoAgent { hosts: job.hosts.len() });
    }
    let (rendezvous, mut listener) = match &job.rendezvous {
        Some(address) => (checked(address)?, None),
        None if job.agent.is_empty() => here(first, job.port)?,
        None => (rendezvous(first, job.port)?, None),
    };
    let secret = Secret::random()
        .map_err(|error| LaunchError::System { what: "draw a secret", source: io::Error::other(error) })?;
    let directory = match &job.directory {
        Some(directory) => directory.clone().into_os_string(),
        None => std::env::current_dir()
            .map_err(|source| LaunchError::System { what: "find the directory it runs in", source })?
            .into_os_string(),
    };
    let inherited = INHERITED.iter().chain(&TransportChoice::VARIABLES);
    let inherited = inherited.filter_map(|&name| Some((name.to_owned(), std::env::var(name).ok()?)));
    let shared: Vec<_> = inherited.chain(job.env.iter().cloned()).collect();

    // Network namespaces have the cores of one machine between them.
    let is_one_machine = job.agent.ends_with(&["netns", "exec"].map(String::from));
    let mut seats = Vec::new();
    for (host_index, host) in job.hosts.iter().enumerate() {
        for local_rank in 0..host.slots {
            let rank = seats.len() as u32;
            let numbers = [rank, world, local_rank, host.slots].map(|number| number.to_string());
            // The first of all is rank 0. What others inherit from a launcher of this one is not theirs.
            let listener: Option<Listener> = listener.take();
            let [listens_at, secret_at] =
                [listener.as_ref().map(Listener::number).unwrap_or_default(), wrapper::SECRET_AT.to_string()];
            let on_failure = match on_failure {
                OnFailure::Stop => "stop",
                OnFailure::Continue => "continue",
            };
            let roles = [servers.to_string(), u32::from(colocated).to_string(), on_failure.to_owned()];
            let own =
                [rendezvous.clone(), secret_at, listens_at.clone(), "1".to_owned()].into_iter().chain(roles);
            let own = RESERVED.iter().map(|&name| name.to_owned()).zip(numbers.into_iter().chain(own));
            let environment: Vec<_> = shared.iter().cloned().chain(own).collect();
            let worker = wrapper::Worker {
                directory: &directory,
                program: &job.program,
                environment: &environment,
                sharing: if is_one_machine { world } else { host.slots },
                listens_at: &listens_at,
            };
            let script = wrapper::script(&worker);
            seats.push(Seat {
                rank,
                host: host.name.clone(),
                host_index,
                command: command(job, host),
                directory: directory.display().to_string(),
                script: [wrapper::secret(&secret), script.into()],
                listener,
            });
        }
    }
    Ok(seats)
}

/// `AGENT HOST sh`, or `sh` alone on this machine.
fn command(job: &Job, host: &Host) -> Vec<String> {
    let mut command = job.agent.clone();
    if !command.is_empty() {
        command.push(host.name.clone());
    }
    command.push("sh".to_owned());
    command
}

fn check_program(program: &[OsString]) -> Result<(), LaunchError> {
    match program.first() {
        None => Err(LaunchError::Program { found: "nothing" }),
        Some(name) if name.is_empty() => Err(LaunchError::Program { found: "an empty name" }),
        Some(_) if program.iter().any(|word| word.as_bytes().contains(&0)) => {
            Err(LaunchError::Program { found: "a NUL byte in its command line" })
        }
        Some(_) => Ok(()),
    }
}

fn check_environment(variables: &[(String, String)]) -> Result<(), LaunchError> {
    for (name, value) in variables {
        let refuse = |why| Err(LaunchError::Variable { name: name.clone(), why });
        let letters = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if !letters || name.is_empty() || name.as_bytes()[0].is_ascii_digit() {
            return refuse("a name consists of letters, digits and `_`, and begins with no digit");
        }
        if RESERVED.contains(&name.as_str()) {
            return refuse("the launcher sets it itself, for each worker");
        }
        if value.contains('\0') {
            return refuse("its value holds a NUL byte");
        }
    }
    Ok(())
}

/// The address where the workers find each other on this machine, and a socket that is bound to it, if it can be handed on: rank 0 is given
/// it, so that no other process takes the port meanwhile. Where no port can be bound, rank 0 reports it.
fn here(first: &Host, port: Option<u16>) -> Result<(String, Option<Listener>), LaunchError> {
    let host = first.address.as_deref().unwrap_or("127.0.0.1");
    let mut found = port.map_or_else(random_port, Ok)?;
    for _ in 0..100 {
        match Listener::bind(host, found) {
            Ok(listener) => return Ok((format!("{host}:{found}"), listener)),
            Err(error) if port.is_none() && error.kind() == io::ErrorKind::AddrInUse => {
                found = random_port()?;
            }
            Err(_) => break,
        }
    }
    Ok((format!("{host}:{found}"), None))
}

/// The address where the workers find each other: the first host's, on a port that is probably free there.
fn rendezvous(first: &Host, port: Option<u16>) -> Result<String, LaunchError> {
    let name = first.name.rsplit('@').next().unwrap_or(&first.name);
    let address = first.address.as_deref().unwrap_or(name);
    let port = port.map_or_else(random_port, Ok)?;
    Ok(if address.contains(':') && !address.starts_with('[') {
        format!("[{address}]:{port}")
    } else {
        format!("{address}:{port}")
    })
}

fn checked(address: &str) -> Result<String, LaunchError> {
    let valid = address.rsplit_once(':').is_some_and(|(host, port)| {
        let bracketed = host.starts_with('[') && host.ends_with(']') && host.len() > 2;
        let port = port.parse::<u16>().is_ok_and(|port| port > 0);
        port && !host.is_empty() && (bracketed || !host.contains([':', '[', ']', ' ']))
    });
    if valid { Ok(address.to_owned()) } else { Err(LaunchError::Rendezvous { found: address.to_owned() }) }
}

fn random_port() -> Result<u16, LaunchError> {
    let ports = PORTS.end() - PORTS.start() + 1;
    Ok(PORTS.start() + u16::from_le_bytes(random::<2>()?) % ports)
}

fn random<const N: usize>() -> Result<[u8; N], LaunchError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| LaunchError::System {
        what: "draw random bytes",
        source: io::Error::other(error),
    })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(job: &Job, name: &str) -> Vec<String> {
        let seats = seats(job).unwrap();
        let texts = seats.iter().map(|seat| String::from_utf8_lossy(&seat.script[1]).into_owned());
        let prefix = format!("export {name}=");
        texts
            .map(|text| {
                let line = text.lines().find_map(|line| line.strip_prefix(&prefix)).unwrap();
                shlex::split(line).unwrap().concat()
            })
            .collect()
    }

    fn two_hosts() -> Job {
        let first = Host { name: "me@a".into(), slots: 2, address: None };
        Job::on(vec![first, Host::new("b")], ["ssh"], ["train"])
    }

    #[test]
    fn ranks_count_up_from_the_first_host() {
        let job = two_hosts();
        assert_eq!(lines(&job, "GLEANER_RANK"), ["0", "1", "2"]);
        assert_eq!(lines(&job, "GLEANER_WORLD_SIZE"), ["3", "3", "3"]);
        assert_eq!(lines(&job, "GLEANER_LOCAL_RANK"), ["0", "1", "0"]);
        assert_eq!(lines(&job, "GLEANER_LOCAL_WORLD_SIZE"), ["2", "2", "1"]);
        let seats = seats(&job).unwrap();
        assert_eq!(seats[0].command, ["ssh", "me@a", "sh"]);
        assert_eq!(seats[2].command, ["ssh", "b", "sh"]);
    }

    #[test]
    fn workers_share_the_cores_of_their_machine() {
        let shares = |job: &Job| {
            let text = |seat: &Seat| String::from_utf8_lossy(&seat.script[1]).into_owned();
            let share = |text: String| {
                text.lines().find_map(|line| line.strip_prefix("gleaner_share=")?.parse::<u32>().ok())
            };
            seats(job).unwrap().iter().filter_map(|seat| share(text(seat))).collect::<Vec<_>>()
        };
        let mut job = two_hosts();
        assert_eq!(shares(&job), [2, 2, 1]);
        job.agent = ["sudo", "ip", "netns", "exec"].map(String::from).into();
        assert_eq!(shares(&job), [3, 3, 3]);
        assert_eq!(lines(&job, "GLEANER_LOCAL_WORLD_SIZE"), ["2", "2", "1"]);
    }

    #[test]
    fn the_last_slots_are_those_of_servers() {
        let mut job = two_hosts();
        job.roles = Roles { servers: 1, colocated: false, on_failure: OnFailure::Continue };
        assert_eq!(lines(&job, "GLEANER_WORLD_SIZE"), ["3", "3", "3"]);
        assert_eq!(lines(&job, "GLEANER_SERVERS"), ["1", "1", "1"]);
        assert_eq!(lines(&job, "GLEANER_COLOCATE"), ["0", "0", "0"]);
        assert_eq!(lines(&job, "GLEANER_ON_FAILURE"), ["continue", "continue", "continue"]);
        job.roles.servers = 3;
        let error = seats(&job).err().unwrap().to_string();
        assert!(error.starts_with("3 parameter servers in 3 processes; expected more processes"), "{error}");
        job.roles.colocated = true;
        assert_eq!(lines(&job, "GLEANER_COLOCATE"), ["1", "1", "1"]);
    }

    #[test]
    fn the_rendezvous_is_at_the_first_host() {
        let mut job = two_hosts();
        job.port = Some(20001);
        assert_eq!(lines(&job, "GLEANER_RENDEZVOUS"), ["a:20001"; 3]);
        job.hosts[0].address = Some("fd00::1".into());
        assert_eq!(lines(&job, "GLEANER_RENDEZVOUS"), ["[fd00::1]:20001"; 3]);
        job.rendezvous = Some("c:7".into());
        assert_eq!(lines(&job, "GLEANER_RENDEZVOUS"), ["c:7"; 3]);
        for wrong in ["c", "c:", ":7", "c:x", "c:0", "fd00::1:7", "[fd00::1]"] {
            job.rendezvous = Some(wrong.into());
            assert!(seats(&job).err().unwrap().to_string().contains(&format!("found `{wrong}`")));
        }
    }

    #[test]
    fn a_secret_is_fresh_for_every_job_and_the_same_for_every_worker() {
        let job = Job::local(2, ["train"]);
        let secrets =
            || seats(&job).unwrap().into_iter().map(|seat| seat.script[0].to_vec()).collect::<Vec<_>>();
        let (one, two) = (secrets(), secrets());
        let assigned = b"unset gleaner_secret; gleaner_secret=";
        assert!(one[0].starts_with(assigned) && one[0].len() == assigned.len() + 64 + 1);
        assert_eq!(one[0], one[1]);
        assert_ne!(one[0], two[0]);
    }

    #[test]
    fn local_ports_lie_below_the_ephemeral_range() {
        let job = Job::local(1, ["train"]);
        for _ in 0..20 {
            let address = lines(&job, "GLEANER_RENDEZVOUS").remove(0);
            let port: u16 = address.strip_prefix("127.0.0.1:").unwrap().parse().unwrap();
            assert!(PORTS.contains(&port), "{port}");
        }
    }

    #[test]
    fn what_cannot_be_started_is_refused() {
        assert!(matches!(seats(&Job::local(0, ["train"])), Err(LaunchError::NoWorkers)));
        assert!(matches!(seats(&Job::local(1, [""; 0])), Err(LaunchError::Program { .. })));
        for name in ["", "a-b", "1a", "GLEANER_RANK", "a b", "x;y"] {
            let mut job = Job::local(1, ["train"]);
            job.env.push((name.into(), "1".into()));
            assert!(matches!(seats(&job), Err(LaunchError::Variable { .. })), "{name}");
        }
    }
}
