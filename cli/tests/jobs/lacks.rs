//! Connections that cannot be made for a while, and workers that lack what it takes to make any.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::job::Job;
use crate::process::{Process, clean, eventually, ports, start};

/// A `connect` for LD_PRELOAD. From the second call on, as far as it goes to the port UNREACHABLE (0 for all), there is no
/// route to any host, for two seconds and until as many processes as REFUSED_PROCESSES have been told so: the file REFUSED
/// has a byte of each. A process with WAITS_FOR_REFUSED only waits for them.
const UNREACHABLE: &str = r#"
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
static int calls, refusals;
static double first;
int connect(int fd, const struct sockaddr *to, socklen_t length) {
    int (*real)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "connect");
    int port = atoi(getenv("UNREACHABLE"));
    if (to->sa_family != AF_INET || (port && ntohs(((const struct sockaddr_in *)to)->sin_port) != port)
        || __sync_fetch_and_add(&calls, 1) == 0)
        return real(fd, to, length);
    int waits = getenv("WAITS_FOR_REFUSED") != NULL;
    if (!waits && __sync_fetch_and_add(&refusals, 1) == 0) {
        int refused = open(getenv("REFUSED"), O_WRONLY | O_APPEND);
        if (write(refused, ".", 1) != 1) abort();
        close(refused);
    }
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double seconds = now.tv_sec + now.tv_nsec * 1e-9;
    if (first == 0) first = seconds;
    struct stat file;
    if (stat(getenv("REFUSED"), &file)) abort();
    if ((waits || seconds - first > 2) && file.st_size >= atoi(getenv("REFUSED_PROCESSES")))
        return real(fd, to, length);
    if (!waits) fprintf(stderr, "no route\n");
    errno = EHOSTUNREACH;
    return -1;
}
"#;

/// The library with that function, or nothing where there is no C compiler.
fn library() -> Option<PathBuf> {
    let library =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("unreachable-{}.so", std::process::id()));
    let source = library.with_extension("c");
    std::fs::write(&source, UNREACHABLE).unwrap();
    let compiled =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).arg("-ldl").status();
    if compiled.is_ok_and(|status| status.success()) {
        return Some(library);
    }
    gleaner_skips::skip("cc", "there is no C compiler, cc");
    None
}

/// The ranks of a job; rank 0 listens before the others start, so that each of them calls it once to join.
fn ranks(job: &Job, command: impl Fn(u32) -> Command) -> Vec<Process> {
    let zero = start(command(0));
    eventually("rank 0 listens", || ports(zero.id()).contains(&job.port));
    std::iter::once(zero).chain((1..job.workers).map(|rank| start(command(rank)))).collect()
}

/// The next four ranks are known to each. Of twelve there are pairs that neither end knows, so all wait until rank 0 can be
/// asked, and then go on. Of eight, one can reach nobody and is reached by all others, once it has tried.
#[test]
fn who_cannot_be_asked_for_two_seconds_is_asked_again() {
    let Some(library) = library() else { return };
    let refused = library.with_extension("refused");
    let arguments = ["--params", "10000", "--steps", "20", "--method", "topkdsa"];
    for (workers, of, affected) in [(12, "rank 0", 1..12), (8, "all", 5..6)] {
        let job = Job::new(workers, &arguments);
        let port = if of == "all" { 0 } else { job.port };
        std::fs::write(&refused, "").unwrap();
        let begun = Instant::now();
        let ranks = ranks(&job, |rank| {
            let mut command = job.command(rank, &[], &[]);
            command.env("LD_PRELOAD", &library).env("UNREACHABLE", port.to_string());
            command.env("REFUSED", &refused).env("REFUSED_PROCESSES", affected.len().to_string());
            if !affected.contains(&rank) {
                command.env("WAITS_FOR_REFUSED", "1");
            }
            command
        });
        for (rank, mut process) in (0..).zip(ranks) {
            let ended = process.end(job.timeout);
            assert_eq!(ended.code, 0, "{ended:?}");
            assert_eq!(
                ended.err.contains("no route"),
                affected.contains(&rank),
                "{of}: rank {rank}: {ended:?}"
            );
        }
        assert!(of == "all" || begun.elapsed() > Duration::from_secs(2));
    }
}

/// One of 8 ranks that may open 11 files joins and can open no links; rank 0 of 16 cannot take all in.
#[test]
fn a_lack_of_descriptors_is_reported_as_that_of_the_worker_itself() {
    for (workers, lacking, own) in [
        (8, 5, "rank 5 failed: its host could not open a connection"),
        (16, 0, "the host of rank 0 could make no connection"),
    ] {
        let job = Job { timeout: Duration::from_secs(8), ..Job::endless(workers, "topkdsa") };
        let ranks = ranks(&job, |rank| {
            let whole = job.command(rank, &[], &[]);
            if rank == lacking { limited(&whole, 11) } else { whole }
        });
        for (rank, mut process) in (0..).zip(ranks) {
            let ended = process.end(job.timeout * 2);
            if rank == lacking || lacking != 0 {
                ended.failed_with(&[own, "raise the limit on open files"]);
            } else {
                ended.failed_with(&["rank 0"]);
            }
        }
    }
}

/// Rank 1 reaches rank 0, and then cannot open its own port; rank 0 cannot open the one at which it is expected.
#[test]
fn a_worker_that_cannot_open_its_own_port_names_its_lack_of_descriptors() {
    // A worker opens 6 before its first connection.
    for (lacking, limit) in [(1, 7), (0, 6)] {
        let job = Job { timeout: Duration::from_secs(4), ..Job::endless(2, "ring") };
        let other = (lacking == 1).then(|| start(job.command(0, &[], &[])));
        if let Some(zero) = &other {
            eventually("rank 0 listens", || ports(zero.id()).contains(&job.port));
        }
        let ended = start(limited(&job.command(lacking, &[], &[]), limit)).end(job.timeout);
        let own = format!("the host of rank {lacking} could make no connection");
        ended.failed_with(&[&own, "Too many open files", "raise the limit on open files (`ulimit -n`)"]);
    }
}

/// The same command in a process that may open so many files besides those that it inherits.
fn limited(whole: &Command, files: usize) -> Command {
    let inherited = inherited();
    let limit = (0..).filter(|number| !inherited.contains(number)).nth(files).unwrap();
    let mut limited = clean(Command::new("sh"));
    limited
        .args(["-c", &format!("ulimit -n {limit} && exec \"$0\" \"$@\"")])
        .arg(whole.get_program())
        .args(whole.get_args());
    for (name, value) in whole.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited
}

/// The descriptors that a process has that is started here, its standard streams among them.
fn inherited() -> Vec<u32> {
    let mut shell = clean(Command::new("sh"));
    let child = shell.args(["-c", "echo && read end"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.unwrap();
    // It is loaded, and has closed what it read for that.
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let open = std::fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap();
    let numbers = open.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    numbers
}
