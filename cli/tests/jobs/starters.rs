//! The same job under each starter.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::job::SECRET;
use crate::process::{Process, clean, eventually, free_port, gleaner, program, run, start};

const GLEANER: &str = env!("CARGO_BIN_EXE_gleaner");
const BENCH: [&str; 10] =
    ["bench", "--json", "--params", "10000", "--method", "spardl", "--steps", "3", "--seed", "5"];

/// What the command itself reports for so many workers.
fn expected(workers: u32) -> serde_json::Value {
    let mut command = gleaner();
    command.args(BENCH).args(["--workers", &workers.to_string()]);
    run(command).report()
}

#[track_caller]
fn compare(report: &serde_json::Value, workers: u32) {
    let expected = expected(workers);
    for field in ["workers", "k", "rounds", "entries_per_step", "digest"] {
        assert_eq!(report[field], expected[field], "{field}");
    }
}

fn secret_file() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("job.secret");
    fs::write(&path, format!("{SECRET}\n")).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    (directory, path)
}

#[test]
fn gleaner_launch() {
    let mut command = gleaner();
    command.args(["launch", "--workers", "3", "--", GLEANER]).args(BENCH);
    compare(&run(command).report(), 3);
}

/// Where standard error is no terminal, a line every few seconds says how far the job is: under the launcher, where the command starts its
/// workers itself, and where something else has started them.
#[test]
#[cfg(feature = "train")]
fn a_long_job_says_how_far_it_is() {
    let train = "train --data synthetic --model mlp --batch 1 --method ring --steps 65 --pace 100ms --evaluate-every 65 --json";
    let (mut launched, mut by_itself, mut started) = (gleaner(), gleaner(), gleaner());
    launched.args(["launch", "--workers", "1", "--", GLEANER]).args(train.split(' '));
    by_itself.args(train.split(' ')).args(["--workers", "1"]);
    started.args(train.split(' ')).env("GLEANER_RANK", "0").env("GLEANER_WORLD_SIZE", "1");
    for mut job in [launched, by_itself, started].map(start) {
        let ended = job.end(Duration::from_secs(60));
        ended.report();
        assert!(
            ended.err.lines().any(|line| line.starts_with("step ") && line.contains(" of 65: loss")),
            "{ended:?}"
        );
    }
}

/// Links that are not encrypted are reported by rank 0, once and first of all.
#[test]
fn plain_links_are_reported_at_the_start_by_rank_0_alone() {
    const NOTICE: &str = "gleaner: links are not encrypted (GLEANER_PLAIN)";
    for is_plain in [true, false] {
        let mut command = gleaner();
        command.args(["launch", "--workers", "3"]).args(is_plain.then_some("--plain"));
        command.args(["--", GLEANER]).args(BENCH);
        let ended = run(command);
        compare(&ended.report(), 3);
        let said: Vec<&str> = ended.err.lines().filter(|line| line.contains(NOTICE)).collect();
        assert_eq!(said.len(), usize::from(is_plain), "{ended:?}");
        let first = ended.err.lines().next().unwrap_or_default();
        assert_eq!(first.starts_with(&format!("[0] {NOTICE}")), is_plain, "{ended:?}");
    }
}

/// Links of several sockets carry the same job.
#[test]
fn several_sockets() {
    for sockets in ["2", "5"] {
        let mut command = gleaner();
        command.args(["launch", "--workers", "3", "--sockets", sockets, "--", GLEANER]).args(BENCH);
        compare(&run(command).report(), 3);
    }
}

#[test]
fn mpirun() {
    let Some(mpirun) = program("open-mpi", "mpirun") else { return };
    let version = Command::new(&mpirun).arg("--version").output().unwrap();
    if !String::from_utf8_lossy(&version.stdout).contains("Open MPI") {
        gleaner_skips::skip("open-mpi", "mpirun on this machine is not Open MPI's");
        return;
    }
    let (_directory, secret) = secret_file();
    let mut command = clean(Command::new(mpirun));
    command.args(["-n", "3", "--oversubscribe", "--allow-run-as-root", GLEANER]).args(BENCH);
    command.env("GLEANER_SECRET_FILE", secret);
    compare(&run(command).report(), 3);
}

#[test]
fn torchrun() {
    let (_directory, secret) = secret_file();
    // Its own store listens on MASTER_PORT, and the workers use the next: no other test gets either.
    let store = loop {
        let port = free_port();
        if free_port() == port + 1 {
            break std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
        }
    };
    let port = store.local_addr().unwrap().port().to_string();
    let mut ranks: Vec<Process> = ["0", "1"]
        .map(|rank| {
            let mut command = gleaner();
            command.args(BENCH).env("GLEANER_SECRET_FILE", &secret);
            command.envs([("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", "2")]);
            command.envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &*port)]);
            // As torchrun sets it without --rdzv-id.
            command.env("TORCHELASTIC_RUN_ID", "none");
            start(command)
        })
        .into();
    let ended = crate::job::end(&mut ranks);
    compare(&ended[0].report(), 2);
    assert_eq!((ended[1].code, &*ended[1].out), (0, ""), "only rank 0 reports: {ended:?}");
}

#[test]
fn srun() {
    let programs = ["srun", "sinfo", "slurmctld", "slurmd", "munged"].map(|name| program("slurm", name));
    let [Some(srun), Some(sinfo), Some(slurmctld), Some(slurmd), Some(munged)] = programs else { return };
    if !is_root() {
        gleaner_skips::skip("root", "a Slurm cluster is started by root");
        return;
    }
    let cluster = Cluster::start(&munged, &slurmctld, &slurmd, &sinfo);
    let (_directory, secret) = secret_file();
    let bench = || {
        let mut command = clean(Command::new(&srun));
        command.args(["-n", "3", "--chdir=/", GLEANER]).args(BENCH);
        command.env("SLURM_CONF", &cluster.conf).env("GLEANER_SECRET_FILE", &secret);
        run(command)
    };
    let mut ended = bench();
    // The port follows from the number of the job, and a job of another test may have it; the next number has another.
    if ended.err.contains("is in use: another program or another job") {
        ended = bench();
    }
    compare(&ended.report(), 3);
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // They end their own helpers, if they are asked to end; those that do not are killed.
        let [munge, ctld, d] = &mut self.daemons;
        for daemon in [d, ctld, munge] {
            daemon.signal("TERM");
            let asked = Instant::now();
            while daemon.runs() && asked.elapsed() < Duration::from_secs(5) {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// A cluster of this machine alone, with its own key, ports and files.
struct Cluster {
    conf: PathBuf,
    daemons: [Process; 3],
    _directory: TempDir,
}

impl Cluster {
    fn start(munged: &Path, slurmctld: &Path, slurmd: &Path, sinfo: &Path) -> Self {
        // munged refuses a directory whose parents others may write to, unless they are sticky, as /tmp is.
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
        fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
        for name in ["munge", "state", "spool"] {
            fs::create_dir(at(name)).unwrap();
            fs::set_permissions(at(name), PermissionsExt::from_mode(0o700)).unwrap();
        }
        let mut key = [0; 128];
        std::io::Read::read_exact(&mut File::open("/dev/urandom").unwrap(), &mut key).unwrap();
        fs::write(at("munge/key"), key).unwrap();
        fs::set_permissions(at("munge/key"), PermissionsExt::from_mode(0o400)).unwrap();
        let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let name = name.trim().split('.').next().unwrap();
        let conf = format!(
            "ClusterName=test\nSlurmctldHost=localhost(127.0.0.1)\nSlurmUser=root\nSlurmdUser=root\n\
             AuthType=auth/munge\nAuthInfo=socket={socket}\nCredType=cred/munge\n\
             SlurmctldPort={ctld}\nSlurmdPort={d}\nSlurmctldPidFile={dir}/ctld.pid\nSlurmdPidFile={dir}/d.pid\n\
             StateSaveLocation={dir}/state\nSlurmdSpoolDir={dir}/spool\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSchedulerType=sched/builtin\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\nReturnToService=2\n\
             JobAcctGatherType=jobacct_gather/none\nAccountingStorageType=accounting_storage/none\n\
             MpiDefault=none\nSwitchType=switch/none\nSlurmdParameters=config_overrides\n\
             NodeName=localhost NodeHostName={name} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN\n\
             PartitionName=test Nodes=localhost Default=YES MaxTime=INFINITE State=UP\n",
            socket = at("munge.socket"),
            dir = directory.path().display(),
            ctld = free_port(),
            d = free_port(),
        );
        fs::write(at("slurm.conf"), conf).unwrap();

        let mut munge = Command::new(munged);
        munge.args(["--foreground", "--force"]);
        for (option, name) in
            [("key-file", "key"), ("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed")]
        {
            munge.arg(format!("--{option}={}", at(&format!("munge/{name}"))));
        }
        munge.arg(format!("--socket={}", at("munge.socket")));
        let munge = start(clean(munge));
        eventually("munged answers", || Path::new(&at("munge.socket")).exists());
        let daemon = |program: &Path| {
            let mut command = clean(Command::new(program));
            command.args(["-D", "-f", &at("slurm.conf")]).env("SLURM_CONF", at("slurm.conf"));
            start(command)
        };
        let daemons = [munge, daemon(slurmctld), daemon(slurmd)];
        let idle = || {
            let mut command = clean(Command::new(sinfo));
            let output =
                command.args(["-h", "-o", "%T"]).env("SLURM_CONF", at("slurm.conf")).output().unwrap();
            String::from_utf8_lossy(&output.stdout).trim() == "idle"
        };
        let begun = Instant::now();
        while !idle() {
            let said = || daemons.iter().map(Process::events).collect::<String>();
            assert!(begun.elapsed() < Duration::from_secs(40), "the node does not become idle:\n{}", said());
            std::thread::sleep(Duration::from_millis(200));
        }
        Self { conf: at("slurm.conf").into(), daemons, _directory: directory }
    }
}
