//! What links carry.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{Network, namespaces, testbed, text};

/// Says to a process of this test binary what its part in a transfer is.
const ROLE: &str = "GLEANER_TESTBED_ROLE";

/// How long a transfer takes.
const WHILE: Duration = Duration::from_millis(2500);

/// The start of a transfer is not counted: a connection takes a while to find its speed.
const WARM: Duration = Duration::from_millis(400);

impl Network {
    /// This binary on a host, in a role that [`transfer`] plays.
    fn role(&self, host: &str, role: &str) -> Child {
        let mut command = testbed(&["exec", "--name", &self.name, host, "--"]);
        command.arg(std::env::current_exe().unwrap()).args([
            "--exact",
            "transfers::transfer",
            "--nocapture",
            "-q",
        ]);
        command.env(ROLE, role).stdout(Stdio::piped()).spawn().unwrap()
    }

    /// Lets pairs of hosts transfer at the same time, and gives what each receiver got, in megabits per second.
    fn rates(&self, pairs: &[(&str, &str, &str)]) -> Vec<f64> {
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
fn is_near(measured: f64, asked: f64) -> bool {
    (0.88..1.1).contains(&(measured / (asked * 1448.0 / 1514.0)))
}

/// Not a test of its own: as a process of its own on an emulated host, it sends or receives.
#[test]
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
        let seconds = (to.min(since + WHILE) - from.unwrap()).as_secs_f64();
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
        network.up(&["--hosts", "2", "--rate", option, "--replace"]);
        let rate = network.rates(&[("host0", "host1", "10.77.0.2")])[0];
        println!("{option}: {rate:.1} Mbit/s");
        assert!(is_near(rate, asked), "{option} gave {rate}");
    }
    network.down();
}

#[test]
fn a_link_can_be_faster_in_one_direction() {
    let Some(network) = Network::named("asymmetric") else { return };
    network.up_with(
        "[[group]]\nname = \"h\"\nhosts = 2\n[host.h0]\nup = { rate = \"20mbit\" }\ndown = { rate = \"80mbit\" }\n",
    );
    let up = network.rates(&[("h0", "h1", "10.77.0.2")])[0];
    let down = network.rates(&[("h1", "h0", "10.77.0.1")])[0];
    println!("up {up:.1}, down {down:.1} Mbit/s");
    assert!(is_near(up, 20.0) && is_near(down, 80.0), "{up} {down}");
}

#[test]
fn transfers_share_an_oversubscribed_core() {
    let Some(network) = Network::named("core") else { return };
    network.up_with(
        "link = { rate = \"100mbit\" }\n[[group]]\nname = \"e\"\nhosts = 3\n[[group]]\nname = \"w\"\nhosts = 2\n\
         [uplink.e]\nrate = \"100mbit\"\n[uplink.w]\nrate = \"100mbit\"\n",
    );
    let alone = network.rates(&[("e0", "w0", "10.77.0.4")])[0];
    let across = network.rates(&[("e0", "w0", "10.77.0.4"), ("e1", "w1", "10.77.0.5")]);
    // The other one stays below its switch and has a link of its own.
    let within = network.rates(&[("e0", "w0", "10.77.0.4"), ("e1", "e2", "10.77.0.3")]);
    println!("alone {alone:.1}, two across {across:.1?}, one across and one within {within:.1?} Mbit/s");
    assert!(is_near(alone, 100.0));
    assert!(is_near(across.iter().sum(), 100.0), "{across:?}");
    assert!(within.iter().all(|rate| is_near(*rate, 100.0)), "{within:?}");
}

#[test]
fn delays_are_there_or_missing_in_a_sentence() {
    let Some(network) = Network::named("delay") else { return };
    let arguments = ["--hosts", "2", "--rate", "100mbit", "--delay", "5ms"];
    let output = network.run("up", &arguments);
    if !output.status.success() {
        network.refuses("up", &arguments, &["delay, jitter and loss", "netem", "gleaner testbed vm --"]);
        assert_eq!(namespaces(&network.name), [""; 0]);
        eprintln!("SKIPPED: this kernel has no netem, so only its refusal was tested");
        return;
    }
    // A connection takes one round trip, of four directions of links; the second attempt needs no address to be asked for.
    let refused = "import socket, time\nfor _ in range(2):\n t = time.time(); socket.socket().connect_ex(('10.77.0.1', 1))\nprint(time.time() - t)";
    let output = network.run("exec", &["host1", "--", "python3", "-c", refused]);
    let Ok(seconds) = text(&output.stdout).trim().parse::<f64>() else {
        eprintln!("SKIPPED: python3 is not here to measure a round trip");
        return;
    };
    assert!((0.02..0.03).contains(&seconds), "{seconds} s");
}

#[test]
fn status_shows_what_crosses_links() {
    let Some(network) = Network::named("status") else { return };
    network.up(&["--hosts", "2", "--rate", "50mbit"]);
    let table = text(&network.run("status", &[]).stdout);
    assert!(table.contains(&format!("{}.host1", network.name)) && table.contains("50 mbit/s"), "{table}");
    let receiver = network.role("host1", "receive");
    let sender = network.role("host0", "send 10.77.0.2");
    sleep(Duration::from_millis(300));
    let shown: Value = serde_json::from_slice(&network.run("status", &["--json"]).stdout).unwrap();
    let hosts = &shown["networks"][0]["hosts"];
    let mbit = |host: usize, what: &str| 8e-6 * hosts[host][what].as_f64().unwrap();
    let (sent, received) = (mbit(0, "sent_bytes_per_second"), mbit(1, "received_bytes_per_second"));
    for mut process in [sender, receiver] {
        assert!(process.wait().unwrap().success());
    }
    assert!((40.0..60.0).contains(&sent) && (40.0..60.0).contains(&received), "{shown}");
    assert!(mbit(0, "received_bytes_per_second") < 5.0);
}
