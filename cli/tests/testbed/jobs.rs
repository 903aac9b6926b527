//! Jobs of two over links that are slow: what takes longer than the timeout arrives, for as long as it moves.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use gleaner::{Method, Session};
use tempfile::NamedTempFile;

use crate::{Network, testbed, text};

/// Says to a process of this test binary what its part in a job is.
const ROLE: &str = "GLEANER_TESTBED_JOB";

/// What the uplink of rank 0 carries, in bytes per second, and for how long it takes what a step sends.
const RATE: f64 = 1e6 / 8.0;
const SECONDS: f64 = 6.0;

const TIMEOUT: Duration = Duration::from_secs(2);

/// What each rank of a job printed, how long it took, and how many bytes the host of rank 0 has sent.
struct Ended {
    said: Vec<String>,
    took: Duration,
    sent: f64,
}

/// What a host has sent, in bytes.
fn sent(network: &Network, host: &str) -> f64 {
    let table = text(&network.run("exec", &[host, "--", "cat", "/proc/net/dev"]).stdout);
    let fields = table.lines().find_map(|line| line.trim().strip_prefix("eth0:")).unwrap();
    fields.split_whitespace().nth(8).unwrap().parse().unwrap()
}

fn secret() -> NamedTempFile {
    let secret = NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "0f".repeat(32)).unwrap();
    secret
}

/// What all ranks of a job share.
struct Job<'a> {
    network: &'a Network,
    secret: &'a NamedTempFile,
    workers: usize,
    role: &'a str,
    timeout: Duration,
}

/// A rank on a host of its own that plays its role.
fn rank(job: &Job, rank: usize) -> Child {
    let Job { network, secret, workers, role, timeout } = job;
    let mut command = testbed(&["exec", "--name", &network.name, &format!("h{rank}"), "--"]);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", "jobs::member", "--ignored", "--nocapture", "-q"]);
    command.env(ROLE, role).env("GLEANER_RANK", rank.to_string());
    command.env("GLEANER_WORLD_SIZE", workers.to_string());
    command.env("GLEANER_RENDEZVOUS", "10.77.0.1:5100").env("GLEANER_SECRET_FILE", secret.path());
    command.env("GLEANER_TIMEOUT", format!("{}ms", timeout.as_millis())).env("GLEANER_JOB", &network.name);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn said(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    text(&output.stdout) + &text(&output.stderr)
}

/// Two ranks that play a role; rank 0 sends slowly.
fn play(name: &str, role: &str) -> Option<Ended> {
    let network = Network::named(name)?;
    network.up_with(
        "[[group]]\nname = \"h\"\nhosts = 2\nlink = { bandwidth = \"100mbit\" }\n[host.h0]\nup = { bandwidth = \"1mbit\" }\n",
    );
    let secret = secret();
    let begun = Instant::now();
    let job = Job { network: &network, secret: &secret, workers: 2, role, timeout: TIMEOUT };
    let ranks = [0, 1].map(|number| rank(&job, number));
    let said = ranks.into_iter().map(said).collect();
    Some(Ended { said, took: begun.elapsed(), sent: sent(&network, "h0") })
}

/// Not a test of its own: as a process of its own on an emulated host, it is a rank.
#[test]
#[ignore = "run by another test, as a process of its own"]
fn member() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let session = Session::join().unwrap();
    // Of two, each sends the other one message after another; of three, each sends to the next.
    let n = (RATE * SECONDS / 4.0) as usize;
    let method = if session.world_size() == 2 { "recursive-doubling" } else { "ring" };
    let mut reducer = session.reducer("r", n, Method::named(method).unwrap()).unwrap();
    // Their mean is two.
    let all = 4.0 / (session.world_size() as f32 - 1.0);
    let step = reducer.start(&vec![all * session.rank() as f32; n]).unwrap();
    if role == "abort" && session.rank() == 0 {
        // By then the message is on its way.
        std::thread::sleep(Duration::from_millis(500));
        drop(step);
        println!("\n{}", session.abort(&"there is no more data"));
        return;
    }
    match step.wait() {
        Ok(update) => {
            let values = update.values("r").unwrap();
            println!("\nall are two: {}", values.len() == n && values.iter().all(|value| *value == 2.0));
        }
        Err(error) => println!("\n{error}"),
    }
}

/// Rank 0 has all and leaves at once, with seconds of its own message still to be sent. A message of 256 KiB alone takes
/// longer than the timeout.
#[test]
fn who_leaves_sends_what_others_need_before() {
    let Some(Ended { said, took, sent }) = play("leave", "leave") else { return };
    for said in said {
        assert!(said.contains("all are two: true"), "{said}");
        assert!(!said.contains("rank "), "{said}");
    }
    assert!(took.as_secs_f64() > SECONDS && took.as_secs_f64() < 2.0 * SECONDS, "{took:?}");
    assert!(sent > RATE * SECONDS, "{sent} bytes");
}

/// The news of a failure goes before what waits, and arrives behind what is under way.
#[test]
fn the_reason_of_an_abort_arrives_over_a_slow_link() {
    let Some(Ended { said, sent, .. }) = play("news", "abort") else { return };
    for said in said {
        assert!(
            said.contains("rank 0 failed at step 0: its program failed: there is no more data"),
            "{said}"
        );
    }
    println!("{sent} bytes");
    assert!(sent < 0.8 * RATE * SECONDS, "nearly all was sent before: {sent} bytes");
}

/// Two hosts cannot reach each other while links are opened: they try again.
#[test]
fn a_route_that_is_missing_for_two_seconds_ends_no_job() {
    let Some(network) = Network::named("route") else { return };
    network.up_with("link = { bandwidth = \"100mbit\" }\n[[group]]\nname = \"h\"\nhosts = 3\n");
    let route = |verb: &str| {
        let arguments = ["h1", "--", "ip", "route", verb, "unreachable", "10.77.0.3/32"];
        let output = network.run("exec", &arguments);
        assert!(output.status.success(), "{}", text(&output.stderr));
    };
    route("add");
    let begun = Instant::now();
    let (secret, timeout) = (secret(), Duration::from_secs(10));
    let job = Job { network: &network, secret: &secret, workers: 3, role: "reduce", timeout };
    let ranks = [0, 1, 2].map(|number| rank(&job, number));
    std::thread::sleep(Duration::from_secs(3));
    route("del");
    for said in ranks.map(said) {
        assert!(said.contains("all are two: true"), "{said}");
    }
    assert!(begun.elapsed() > Duration::from_secs(3), "no link was missed");
}

/// A host that is cut off before its worker joins: the worker cannot reach rank 0 and says so, all others are told by rank 0 who is
/// missing, and so it is the one that the launcher names.
#[test]
fn who_is_cut_off_before_it_joins_is_named_by_the_launcher() {
    let Some(network) = Network::named("alone") else { return };
    let up = network.run("up", &["--hosts", "4"]);
    assert!(up.status.success(), "{}", text(&up.stderr));
    let hosts = NamedTempFile::new().unwrap();
    std::fs::write(hosts.path(), &up.stdout).unwrap();
    // At the switch, as if a cable were pulled.
    let cut = ["-n", &network.name, "link", "set", "dev", "port2", "down"];
    assert!(std::process::Command::new("ip").args(cut).status().unwrap().success());
    let program = env!("CARGO_BIN_EXE_gleaner");
    let mut launch = std::process::Command::new(program);
    launch
        .args(["launch", "--json", "--timeout", "5s", "--agent", "ip netns exec", "--hostfile"])
        .arg(hosts.path());
    launch.args(["--", program, "bench", "--params", "1000", "--method", "ring", "--steps", "2"]);
    let output = launch.output().unwrap();
    let (said, printed) = (text(&output.stderr), text(&output.stdout));
    let last = said.lines().last().unwrap_or_default();
    assert!(last.contains("rank 2 failed: rank 0 waited 5s for 4 workers; rank 2 did not come"), "{said}");
    assert!(last.contains("it says itself: rank 0 failed: rank 2 could not reach rank 0"), "{said}");
    let object: serde_json::Value = serde_json::from_str(printed.lines().last().unwrap()).unwrap();
    assert_eq!((object["failed_rank"].as_u64(), output.status.code()), (Some(2), Some(1)), "{said}");
}
