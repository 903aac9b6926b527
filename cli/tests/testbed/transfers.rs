//! What links carry.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{Network, testbed, text};

/// Says to a process of this test binary what its part in a transfer is.
const ROLE: &str = "GLEANER_TESTBED_ROLE";

/// How long a transfer takes.
const WHILE: Duration = Duration::from_millis(2500);

/// The start of a transfer is not counted: a connection takes a while to find its speed.
const WARM: Duration = Duration::from_millis(400);

/// How often a transfer is measured before a link is said to be wrong. A busy machine makes a transfer slow, or fast where
/// a receiver finds that much has arrived meanwhile; a link that is set to another rate is off every time.
const ATTEMPTS: usize = 12;

/// Held while links are measured, so that transfers of several tests do not take the processors from each other.
pub(super) static MEASURING: Mutex<()> = Mutex::new(());

impl Network {
    /// This binary on a host, in a role that [`transfer`] plays.
    fn role(&self, host: &str, role: &str) -> Child {
        let mut command = testbed(&["exec", "--name", &self.name, host, "--"]);
        command.arg(std::env::current_exe().unwrap()).args([
            "--exact",
            "transfers::transfer",
            "--ignored",
            "--nocapture",
            "-q",
        ]);
        command.env(ROLE, role).stdout(Stdio::piped()).spawn().unwrap()
    }

    /// Lets pairs of hosts transfer at the same time, and gives what each receiver got, in megabits per second.
    pub(super) fn rates(&self, pairs: &[(&str, &str, &str)]) -> Vec<f64> {
        let _alone = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
        let receivers: Vec<Child> = pairs.iter().map(|(_, to, _)| self.role(to, "receive")).collect();
        let senders: Vec<Child> =
            pairs.iter().map(|(from, _, address)| self.role(from, &format!("send {address}"))).collect();
        for mut sender in senders {
            assert!(sender.wait().unwrap().success());
        }
        let rate = |receiver: Child| {
            let output = text(&receiver.wait_with_output().unwrap().stdout);
            let line = output.lines().find_map(|line| line.strip_prefix("received "));
            line.unwrap_or_else(|| panic!("{output}")).parse().unwrap()
        };
        receivers.into_iter().map(rate).collect()
    }
}

/// Whether a transfer went at a rate, less the headers of TCP, IP and Ethernet, which are 66 of 1514 bytes.
pub(super) fn is_near(measured: f64, asked: f64) -> bool {
    (0.88..1.1).contains(&(measured / (asked * 1448.0 / 1514.0)))
}

/// Measures until all of it holds at once, a few times at the most.
#[track_caller]
pub(super) fn measured_once(measure: impl Fn() -> Vec<f64>, holds: impl Fn(&[f64]) -> bool) {
    let mut seen = Vec::new();
    for _ in 0..ATTEMPTS {
        let measured = measure();
        let fits = holds(&measured);
        println!("{measured:.1?}");
        seen.push(measured);
        if fits {
            return;
        }
    }
    panic!("none of {seen:.1?} is as asked");
}

/// Not a test of its own: as a process of its own on an emulated host, it sends or receives.
#[test]
#[ignore = "run by another test, as a process of its own"]
fn transfer() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut buffer = vec![0; 1 << 16];
    let Some(address) = role.strip_prefix("send ") else {
        let (mut stream, _) = TcpListener::bind("0.0.0.0:5001").unwrap().accept().unwrap();
        let since = Instant::now();
        let (mut counted, mut from, mut to) = (0, None, since);
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            to = Instant::now();
            match from {
                Some(_) if to - since < WHILE => counted += count,
                None if to - since > WARM => from = Some(to),
                _ => {}
            }
        }
        // None where no time was left beside the start: this machine has stood still.
        let seconds = from.map_or(f64::NAN, |from| (to.min(since + WHILE) - from).as_secs_f64());
        println!("\nreceived {}", 8e-6 * counted as f64 / seconds);
        return;
    };
    let until = Instant::now() + Duration::from_secs(10);
    let mut stream = loop {
        match TcpStream::connect((address, 5001)) {
            Ok(stream) => break stream,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        sleep(Duration::from_millis(5));
    };
    let since = Instant::now();
    while since.elapsed() < WHILE {
        stream.write_all(&buffer).unwrap();
    }
}

#[test]
fn links_carry_what_was_asked_and_no_more() {
    let Some(network) = Network::named("rate") else { return };
    for (option, asked) in [("10mbit", 10.0), ("100mbit", 100.0), ("400mbit", 400.0)] {
        network.up(&["--hosts", "2", "--bandwidth", option, "--replace"]);
        measured_once(|| network.rates(&[("host0", "host1", "10.77.0.2")]), |rates| is_near(rates[0], asked));
    }
    network.down();
}

#[test]
fn a_link_can_be_faster_in_one_direction() {
    let Some(network) = Network::named("asymmetric") else { return };
    network.up_with(
        "[[group]]\nname = \"h\"\nhosts = 2\n[host.h0]\nup = { bandwidth = \"20mbit\" }\ndown = { bandwidth = \"80mbit\" }\n",
    );
    measured_once(|| network.rates(&[("h0", "h1", "10.77.0.2")]), |up| is_near(up[0], 20.0));
    measured_once(|| network.rates(&[("h1", "h0", "10.77.0.1")]), |down| is_near(down[0], 80.0));
}

#[test]
fn transfers_share_an_oversubscribed_core() {
    let Some(network) = Network::named("core") else { return };
    network.up_with(
        "link = { bandwidth = \"100mbit\" }\n[[group]]\nname = \"e\"\nhosts = 3\n[[group]]\nname = \"w\"\nhosts = 2\n\
         [uplink.e]\nbandwidth = \"100mbit\"\n[uplink.w]\nbandwidth = \"100mbit\"\n",
    );
    let (e0_w0, e1_w1) = (("e0", "w0", "10.77.0.4"), ("e1", "w1", "10.77.0.5"));
    measured_once(|| network.rates(&[e0_w0]), |alone| is_near(alone[0], 100.0));
    measured_once(|| network.rates(&[e0_w0, e1_w1]), |across| is_near(across.iter().sum(), 100.0));
    // The other one stays below its switch and has a link of its own.
    let within = || network.rates(&[e0_w0, ("e1", "e2", "10.77.0.3")]);
    measured_once(within, |within| within.iter().all(|rate| is_near(*rate, 100.0)));
}

/// What `status --json` says of a network while one host sends to another as fast as it can.
fn status_during_a_transfer(network: &Network, from: &str, to: &str, address: &str) -> Value {
    let _alone = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
    let receiver = network.role(to, "receive");
    let sender = network.role(from, &format!("send {address}"));
    sleep(Duration::from_millis(300));
    let shown: Value = serde_json::from_slice(&network.run("status", &["--json"]).stdout).unwrap();
    for mut process in [sender, receiver] {
        assert!(process.wait().unwrap().success());
    }
    shown["networks"][0].clone()
}

/// What such a link receives and sends, in megabits per second, headers included.
fn crossing(link: &Value) -> [f64; 2] {
    ["received_bytes_per_second", "sent_bytes_per_second"].map(|what| 8e-6 * link[what].as_f64().unwrap())
}

#[test]
fn status_shows_what_crosses_links() {
    let Some(network) = Network::named("status") else { return };
    network.up(&["--hosts", "2", "--bandwidth", "50mbit"]);
    let table = text(&network.run("status", &[]).stdout);
    assert!(table.contains(&format!("{}.host1", network.name)) && table.contains("50 Mbit/s"), "{table}");
    assert!(!table.contains("uplink"), "{table}");
    let measure = || {
        let shown = status_during_a_transfer(&network, "host0", "host1", "10.77.0.2");
        assert_eq!(shown["uplinks"], serde_json::json!([]));
        [&shown["hosts"][0], &shown["hosts"][1]].map(crossing).concat()
    };
    measured_once(measure, |rates| {
        let [received0, sent0, received1, sent1] = rates[..] else { panic!("{rates:?}") };
        [sent0, received1].iter().all(|rate| (40.0..60.0).contains(rate)) && received0 < 5.0 && sent1 < 5.0
    });
}

/// Links of hosts without limit: what holds the transfer back, and is shown, is the way out of its group.
#[test]
fn status_shows_what_crosses_uplinks() {
    let Some(network) = Network::named("uplinks") else { return };
    network.up_with(
        "[[group]]\nname = \"east\"\nhosts = 2\n[[group]]\nname = \"flat\"\nhosts = 1\n\
         [[group]]\nname = \"west\"\nhosts = 1\n\
         [uplink.east]\nup = { bandwidth = \"30mbit\" }\ndown = { bandwidth = \"90mbit\" }\n[uplink.west]\nbandwidth = \"60mbit\"\n",
    );
    let table = text(&network.run("status", &[]).stdout);
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    let head = rows.iter().position(|row| row[..] == ["group", "receives", "sends", "uplink"]).unwrap();
    let [east, west] = &rows[head + 1..] else { panic!("{table}") };
    assert_eq!((east[0], west[0]), ("east", "west"), "{table}");
    assert!(table.contains("up 30 Mbit/s; down 90 Mbit/s") && table.ends_with("  60 Mbit/s\n"), "{table}");
    let measure = || {
        let shown = status_during_a_transfer(&network, "east1", "west0", "10.77.0.4");
        let uplinks = shown["uplinks"].as_array().unwrap();
        let groups: Vec<&Value> = uplinks.iter().map(|uplink| &uplink["group"]).collect();
        assert_eq!(groups, ["east", "west"]);
        assert_eq!(uplinks[0]["link"]["up"]["bandwidth"], "30 Mbit/s");
        uplinks.iter().flat_map(crossing).collect()
    };
    measured_once(measure, |rates| {
        let [east_received, east_sent, west_received, west_sent] = rates[..] else { panic!("{rates:?}") };
        let full = [east_sent, west_received].iter().all(|rate| (24.0..36.0).contains(rate));
        full && east_received < 5.0 && west_sent < 5.0
    });
}
