//! What each starter's variables say.

use std::fs;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::fs::PermissionsExt;

use super::*;

/// With a secret in the file, if one is named.
fn config(variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(SECRET.1);
    fs::write(&path, [7; 32]).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    Config::from_lookup(&|name| {
        let found = variables.iter().find(|(n, _)| *n == name).ok_or(VarError::NotPresent)?;
        Ok(if *found == SECRET { path.to_str().unwrap().to_owned() } else { found.1.to_owned() })
    })
}

const SECRET: (&str, &str) = ("GLEANER_SECRET_FILE", "job.secret");

/// Rank 3 of 8, as torchrun starts it.
fn torchrun<'a>(id: &'a str, port: &'a str) -> [(&'static str, &'a str); 6] {
    let place = [("RANK", "3"), ("WORLD_SIZE", "8"), ("MASTER_ADDR", "node1")];
    [place[0], place[1], place[2], ("MASTER_PORT", port), ("TORCHELASTIC_RUN_ID", id), SECRET]
}

#[test]
fn every_starter_is_understood() {
    let alone = config(&[]).unwrap();
    assert_eq!((alone.rank, alone.world_size, alone.timeout), (0, 1, TIMEOUT));

    let torchrun = config(&torchrun("none", "29400")).unwrap();
    assert_eq!((torchrun.rank, torchrun.rendezvous.as_deref()), (3, Some("node1:29401")));

    let slurm = [
        ("SLURM_PROCID", "1"),
        ("SLURM_NTASKS", "2"),
        ("SLURM_JOB_ID", "77"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NODELIST", "gpu[03-05],login1"),
        ("GLEANER_TIMEOUT", "500ms"),
        ("GLEANER_SOCKETS", "4"),
        SECRET,
    ];
    let slurm = config(&slurm).unwrap();
    assert!(slurm.rendezvous.unwrap().starts_with("gpu03:2"));
    assert_eq!(slurm.timeout, Duration::from_millis(500));
    assert_eq!((&*slurm.job, slurm.is_plain, slurm.transport.sockets.number()), ("77.0.", false, 4));

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

/// The same start of a job has the same id at all ranks, another start has another.
#[test]
fn each_start_of_a_job_has_its_id() {
    let slurm = |changed: (&'static str, &'static str)| {
        let variables = [
            ("SLURM_PROCID", "1"),
            ("SLURM_NTASKS", "2"),
            ("SLURM_JOB_ID", "77"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_STEP_NODELIST", "a"),
            SECRET,
        ];
        let kept = variables.into_iter().filter(|(name, _)| *name != changed.0);
        config(&kept.chain([changed]).collect::<Vec<_>>()).unwrap().job
    };
    assert_eq!(slurm(("SLURM_PROCID", "0")), slurm(("SLURM_PROCID", "1")));
    let others = [("SLURM_JOB_ID", "78"), ("SLURM_STEP_ID", "1"), ("SLURM_RESTART_COUNT", "1")];
    assert!(others.into_iter().all(|other| slurm(other) != slurm(("SLURM_PROCID", "0"))));
    assert_eq!(slurm(("GLEANER_JOB", "mine")), "mine");

    let torchrun = |id: &str, port: &str| config(&torchrun(id, port)).unwrap().job;
    assert_ne!(torchrun("17", "29400"), torchrun("18", "29400"));
    assert_ne!(torchrun("none", "29400"), torchrun("none", "29500"));
}

/// A secret from a file is no job's own, so that two jobs would meet.
#[test]
fn a_job_without_an_id_is_refused() {
    let job = [
        ("GLEANER_RANK", "0"),
        ("GLEANER_WORLD_SIZE", "4"),
        ("GLEANER_RENDEZVOUS", "a:1"),
        SECRET,
        ("GLEANER_JOB", "mine"),
    ];
    assert_eq!(config(&job).unwrap().job, "mine");
    let by_hand = [&torchrun("17", "29400")[..4], &[SECRET]].concat();
    for variables in [&job[..4], &[&job[..4], &[("GLEANER_JOB", "")]].concat(), &by_hand] {
        let refused = config(variables).unwrap_err().to_string();
        assert!(refused.contains("set GLEANER_JOB"), "{refused}");
    }
}

#[test]
fn variables_that_any_program_may_export_start_nothing() {
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
    let in_environment = sentence(&[&job[..], &[("GLEANER_SECRET", "00")]].concat());
    assert!(in_environment.contains("GLEANER_SECRET is not read"), "{in_environment}");
    for (number, why) in [("2", "no number above 2"), ("x", "no number above 2"), ("999999", "is not open")] {
        let descriptor = sentence(&[&job[..], &[("GLEANER_SECRET_FD", number)]].concat());
        assert!(descriptor.contains(why) && descriptor.contains("GLEANER_SECRET_FD"), "{descriptor}");
    }
    let wrong = [("GLEANER_TIMEOUT", "soon"), ("GLEANER_PLAIN", "yes"), ("GLEANER_TRANSPORT", "udp")];
    for (name, value) in wrong.into_iter().chain([("GLEANER_SOCKETS", "0"), ("GLEANER_SOCKETS", "65")]) {
        let wrong = sentence(&[(name, value)]);
        assert!(wrong.contains(name) && wrong.contains(&format!("'{value}'")), "{wrong}");
    }
}

#[test]
fn the_first_host_of_a_node_list() {
    for (list, host) in
        [("n1", "n1"), ("n1,n2", "n1"), ("gpu[03-05,9],x", "gpu03"), ("a[1]-ib,b", "a1-ib"), ("r[7,9]", "r7")]
    {
        assert_eq!(first_host(list), host, "{list}");
    }
}

/// The pipe with the secret is read and closed by the first that asks.
#[test]
fn the_secret_of_a_launcher_is_read_once() {
    use std::io::Write;
    let file = tempfile::tempfile().unwrap();
    let (read, mut write) = std::io::pipe().unwrap();
    writeln!(write, "{}", "ab".repeat(32)).unwrap();
    drop(write);
    let number = read.into_raw_fd().to_string();
    let job = [
        ("GLEANER_RANK", "0"),
        ("GLEANER_WORLD_SIZE", "4"),
        ("GLEANER_RENDEZVOUS", "a:1"),
        ("GLEANER_SECRET_FD", &number),
    ];
    assert_eq!(config(&job).unwrap().secret.unwrap().to_hex(), "ab".repeat(32));
    let error = config(&job).unwrap_err().to_string();
    assert!(error.contains("was taken before") || error.contains("is not open"), "{error}");

    // Something else is left alone.
    let number = file.as_raw_fd().to_string();
    let error = config(&[&job[..3], &[("GLEANER_SECRET_FD", &number)]].concat()).unwrap_err().to_string();
    assert!(error.contains("something else"), "{error}");
    file.metadata().unwrap();
}

#[test]
fn the_last_ranks_are_servers_under_any_starter() {
    let with = |more: &[(&'static str, &'static str)]| config(&[&torchrun("none", "29400"), more].concat());
    assert_eq!(with(&[]).unwrap().roles, Roles::default());
    let roles = with(&[("GLEANER_SERVERS", "2"), ("GLEANER_ON_FAILURE", "continue")]).unwrap().roles;
    assert_eq!(roles, Roles { servers: 2, colocated: false, on_failure: OnFailure::Continue });
    let roles = with(&[("GLEANER_SERVERS", "8"), ("GLEANER_COLOCATE", "1")]).unwrap().roles;
    assert_eq!(roles, Roles { servers: 8, colocated: true, on_failure: OnFailure::Stop });
    let refused = |more: &[(&'static str, &'static str)]| with(more).unwrap_err().to_string();
    assert!(
        refused(&[("GLEANER_SERVERS", "8")]).starts_with("8 parameter servers among 8 ranks; start at least")
    );
    assert!(refused(&[("GLEANER_SERVERS", "-1")]).contains("GLEANER_SERVERS is '-1'; expected a number"));
    assert!(refused(&[("GLEANER_COLOCATE", "yes")]).contains("expected 1 or 0"));
    assert!(refused(&[("GLEANER_ON_FAILURE", "go")]).contains("expected stop or continue"));
}
