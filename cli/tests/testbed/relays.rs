//! Links that delay and lose packets: by netem, or by the relay where the kernel has none.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::{Child, Stdio};
use std::sync::PoisonError;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::transfers::{MEASURING, is_near, measured_once};
use crate::{Network, namespaces, testbed, text};

/// Says to a process of this test binary what it does on a host.
const PART: &str = "GLEANER_TESTBED_PART";

/// Datagrams that are counted, and how long each is.
const COUNTED: u32 = 20_000;
const LENGTH: usize = 100;

/// Bytes of a transfer whose content is checked.
const CHECKED: usize = 8 << 20;

/// Datagrams that are handed over at once, how often, and how long each is.
const AT_ONCE: u32 = 40;
const BURSTS: u32 = 400;
const BIG: usize = 1200;

/// How long a process waits for what does not come.
const PATIENCE: Duration = Duration::from_secs(60);

impl Network {
    /// Makes one with these links, or says why there can be none.
    fn lossy(&self, arguments: &[&str]) -> bool {
        let output = self.run("up", &[&["--hosts", "2"], arguments].concat());
        let said = text(&output.stderr);
        if !output.status.success() {
            assert!(said.contains("latency, jitter and loss") && said.contains("netem"), "{said}");
            assert_eq!(namespaces(&self.name), [""; 0]);
            gleaner_skips::skip("netem", "this kernel has neither netem nor /dev/net/tun");
        }
        output.status.success()
    }

    /// This binary on a host, in a part that [`part`] plays.
    fn part(&self, host: &str, part: &str) -> Child {
        let mut command = testbed(&["exec", "--name", &self.name, host, "--"]);
        let arguments = ["--exact", "relays::part", "--ignored", "--nocapture", "-q"];
        command.arg(std::env::current_exe().unwrap()).args(arguments);
        command.env(PART, part).stdout(Stdio::piped()).spawn().unwrap()
    }

    /// What one says on the first host while another does its part on the second.
    fn both(&self, first: &str, second: &str) -> String {
        let _alone = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
        let (answers, mut asks) = (self.part("host0", first), self.part("host1", second));
        assert!(asks.wait().unwrap().success());
        let said = [answers, asks].map(|child| text(&child.wait_with_output().unwrap().stdout)).concat();
        let line = said.lines().find_map(|line| line.strip_prefix("said "));
        line.unwrap_or_else(|| panic!("{said}")).to_owned()
    }

    /// What is said of the relay: null where netem does its work.
    fn relay(&self) -> Value {
        let shown = self.run("status", &["--json"]);
        let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
        shown["networks"][0]["relay"].clone()
    }

    /// The relay's process, if it runs.
    fn relay_process(&self) -> Option<String> {
        let ours = ["testbed", "relay", &self.name].map(str::to_owned);
        let found = gleaner_processes::all().find(|process| process.command().ends_with(&ours));
        found.map(|process| process.number().to_string())
    }
}

fn socket(port: u16) -> UdpSocket {
    let socket = UdpSocket::bind(("0.0.0.0", port)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Sends datagrams and waits for each to come back: the least time, in milliseconds. A busy machine delays some, and hastens none.
fn trips() -> f64 {
    let socket = socket(0);
    socket.connect(("10.77.0.1", 5002)).unwrap();
    let mut trips = Vec::new();
    while trips.len() < 60 {
        let since = Instant::now();
        // The first may come before the other host can answer.
        let _ = socket.send(&[7; LENGTH]);
        socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        if socket.recv(&mut [0; LENGTH]).is_ok() {
            trips.push(1e3 * since.elapsed().as_secs_f64());
        }
    }
    let _ = socket.send(&[0]);
    trips.into_iter().fold(f64::INFINITY, f64::min)
}

fn echo() {
    let (socket, mut room) = (socket(5002), [0; LENGTH]);
    while let Ok((length @ 2.., from)) = socket.recv_from(&mut room) {
        socket.send_to(&room[..length], from).unwrap();
    }
}

/// Sends datagrams at a pace that fills no queue, and then by TCP that it is done.
fn datagrams() {
    let socket = socket(0);
    let done = connected();
    for number in 0..COUNTED {
        socket.send_to(&[7; LENGTH], ("10.77.0.1", 5002)).unwrap();
        if number % 20 == 19 {
            sleep(Duration::from_millis(2));
        }
    }
    drop(done);
}

fn count() -> usize {
    let mut counted = 0;
    received(LENGTH, |_| counted += 1);
    counted
}

/// Takes datagrams until nothing comes any more.
fn received(most: usize, mut take: impl FnMut(&[u8])) {
    let (socket, mut room) = (socket(5002), vec![0; most]);
    roomy(&socket);
    let (mut done, _) = TcpListener::bind("0.0.0.0:5003").unwrap().accept().unwrap();
    done.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    loop {
        match socket.recv(&mut room) {
            Ok(length) => take(&room[..length]),
            // Nothing comes any more, and nothing will.
            Err(_) if matches!(done.read(&mut [0]), Ok(0)) => return,
            Err(_) => {}
        }
    }
}

/// The content of a datagram.
fn numbered(number: u32) -> Vec<u8> {
    (0..BIG as u32 / 4).flat_map(|i| number.wrapping_mul(i * 2 + 1).to_le_bytes()).collect()
}

/// Sets an option of a socket.
fn set(socket: &UdpSocket, level: i32, name: i32, value: i32) {
    unsafe extern "C" {
        fn setsockopt(socket: i32, level: i32, name: i32, value: *const i32, length: u32) -> i32;
    }
    // SAFETY: the kernel reads four bytes, which are there, and the descriptor is open.
    let done = unsafe { setsockopt(socket.as_raw_fd(), level, name, &value, 4) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// Has the kernel cut what is sent at once into datagrams.
fn segmented(socket: &UdpSocket) {
    const SOL_UDP: i32 = 17;
    const UDP_SEGMENT: i32 = 103;
    set(socket, SOL_UDP, UDP_SEGMENT, BIG as i32);
}

/// Has the kernel keep all datagrams of a test, beyond what it gives others, for a process that has no processor meanwhile.
fn roomy(socket: &UdpSocket) {
    const SOL_SOCKET: i32 = 1;
    const SO_RCVBUFFORCE: i32 = 33;
    set(socket, SOL_SOCKET, SO_RCVBUFFORCE, 32 << 20);
}

/// Sends many datagrams at once, as QUIC does, and then by TCP that it is done.
fn bursts() {
    let socket = socket(0);
    segmented(&socket);
    let done = connected();
    for burst in 0..BURSTS {
        let numbers = burst * AT_ONCE..(burst + 1) * AT_ONCE;
        let all: Vec<u8> = numbers.flat_map(numbered).collect();
        socket.send_to(&all, ("10.77.0.1", 5002)).unwrap();
        sleep(Duration::from_millis(2));
    }
    drop(done);
}

/// How many came, each once and as it was.
fn whole() -> usize {
    let mut numbers = BTreeSet::new();
    received(2 * BIG, |datagram| {
        let number = u32::from_le_bytes(*datagram.first_chunk().unwrap());
        assert_eq!(datagram, numbered(number), "{number}");
        assert!(numbers.insert(number), "{number} came twice");
    });
    numbers.len()
}

fn connected() -> TcpStream {
    let until = Instant::now() + PATIENCE;
    loop {
        match TcpStream::connect(("10.77.0.1", 5003)) {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        sleep(Duration::from_millis(5));
    }
}

fn pattern() -> Vec<u8> {
    (0..CHECKED as u32).map(|i| (i.wrapping_mul(0x9e37_79b1) >> 13) as u8).collect()
}

/// Not a test of its own: as a process of its own on an emulated host, it measures with another.
#[test]
#[ignore = "run by another test, as a process of its own"]
fn part() {
    match std::env::var(PART).as_deref() {
        Ok("echo") => echo(),
        Ok("trips") => println!("\nsaid {}", trips()),
        Ok("datagrams") => datagrams(),
        Ok("count") => println!("\nsaid {}", count()),
        Ok("bursts") => bursts(),
        Ok("whole") => println!("\nsaid {}", whole()),
        Ok("pattern") => connected().write_all(&pattern()).unwrap(),
        Ok("congestion") => {
            let (mut stream, _) = TcpListener::bind("0.0.0.0:5003").unwrap().accept().unwrap();
            let used = socket2::SockRef::from(&stream).tcp_congestion().unwrap();
            stream.read_to_end(&mut Vec::new()).unwrap();
            println!("\nsaid {}", text(used.split(|byte| *byte == 0).next().unwrap()));
        }
        Ok("check") => {
            let (mut stream, _) = TcpListener::bind("0.0.0.0:5003").unwrap().accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut taken = Vec::new();
            stream.read_to_end(&mut taken).unwrap();
            println!("\nsaid {}", taken == pattern());
        }
        _ => {}
    }
}

#[test]
fn a_round_trip_takes_four_delays() {
    let Some(network) = Network::named("trip") else { return };
    for (delay, expected) in [("250us", 1.0), ("5ms", 20.0), ("20ms", 80.0)] {
        if !network.lossy(&["--bandwidth", "1gbit", "--link-latency", delay, "--replace"]) {
            return;
        }
        let measure = || vec![network.both("echo", "trips").parse().unwrap()];
        // What the machine itself takes is a part of a millisecond.
        measured_once(measure, |trip| (expected..1.1 * expected + 0.2).contains(&trip[0]));
    }
    network.down();
}

#[test]
fn a_share_of_packets_is_lost() {
    let Some(network) = Network::named("loss") else { return };
    if !network.lossy(&["--link-latency", "1ms", "--loss", "1%", "--seed", "7"]) {
        return;
    }
    let counted: f64 = network.both("count", "datagrams").parse().unwrap();
    let (sent, share) = (f64::from(COUNTED), 1.0 - 0.99 * 0.99);
    let (lost, expected) = (sent - counted, sent * share);
    println!("{lost} of {sent} lost, {expected} expected");
    let relay = network.relay();
    println!("{relay}");
    // A relay without a processor for a while loses some more, before it takes them in.
    let lost = relay["lost"].as_f64().unwrap_or(lost);
    // Five standard deviations.
    assert!((lost - expected).abs() < 5.0 * f64::sqrt(expected), "{lost} of {sent} lost");
    network.down();
}

/// TCP hands over many segments as one; those that are lost are cut out, and what is left is what was sent.
#[test]
fn what_is_not_lost_arrives_as_it_was() {
    let Some(network) = Network::named("whole") else { return };
    if !network.lossy(&["--bandwidth", "500mbit", "--link-latency", "250us", "--loss", "1%"]) {
        return;
    }
    assert_eq!(network.both("check", "pattern"), "true");
    network.down();
}

/// UDP hands over many datagrams as one, too; each is lost by itself, and is whole or not there.
#[test]
fn datagrams_that_are_handed_over_at_once_are_lost_one_by_one() {
    let Some(network) = Network::named("burst") else { return };
    if !network.lossy(&["--link-latency", "1ms", "--loss", "1%"]) {
        return;
    }
    let whole: f64 = network.both("whole", "bursts").parse().unwrap();
    let sent = f64::from(AT_ONCE * BURSTS);
    // A receiver that has no processor for a while loses some more.
    assert!((0.8 * sent..0.99 * sent).contains(&whole), "{whole} of {sent} came");
    let relay = network.relay();
    println!("{whole} of {sent} came; {relay}");
    if !relay.is_null() {
        let (lost, expected) = (relay["lost"].as_f64().unwrap(), sent * (1.0 - 0.99 * 0.99));
        assert!((lost - expected).abs() < 5.0 * f64::sqrt(expected), "{lost} lost, {expected} expected");
    }
    network.down();
}

/// The congestion control that is asked for is what TCP uses on the hosts; one that is not there is refused before anything is made.
#[test]
fn hosts_use_the_congestion_control_that_was_asked_for() {
    let Some(network) = Network::named("cong") else { return };
    let there = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap();
    for name in there.split_whitespace() {
        network.up(&["--hosts", "2", "--congestion", name, "--replace"]);
        assert_eq!(network.both("congestion", "pattern"), name);
    }
    let refused = network.run("up", &["--hosts", "2", "--congestion", "none-such", "--replace"]);
    let said = text(&refused.stderr);
    assert!(!refused.status.success() && said.contains("no congestion control none-such"), "{said}");
    assert!(said.contains(there.trim()) && network.run("status", &[]).status.success(), "{said}");
    network.down();
}

#[test]
fn a_link_with_a_delay_carries_its_rate() {
    let Some(network) = Network::named("pipe") else { return };
    for (rate, asked) in [("20mbit", 20.0), ("200mbit", 200.0)] {
        if !network.lossy(&["--bandwidth", rate, "--link-latency", "1ms", "--replace"]) {
            return;
        }
        measured_once(|| network.rates(&[("host0", "host1", "10.77.0.2")]), |rates| is_near(rates[0], asked));
    }
    network.down();
}

/// Links between groups are carried, too, and `down` leaves no process.
#[test]
fn an_uplink_with_a_delay_is_crossed() {
    let Some(network) = Network::named("far") else { return };
    if !network.lossy(&["--link-latency", "1ms"]) {
        return;
    }
    network.down();
    network.up_with(
        "[[group]]\nname = \"e\"\nhosts = [\"host0\"]\n[[group]]\nname = \"w\"\nhosts = [\"host1\"]\n[uplink.e]\nlatency = \"10ms\"\n",
    );
    measured_once(
        || vec![network.both("echo", "trips").parse().unwrap()],
        |trip| (20.0..22.2).contains(&trip[0]),
    );
    network.down();
    assert_eq!(network.relay_process(), None);
}

#[test]
fn a_relay_that_is_gone_is_reported_and_removed() {
    let Some(network) = Network::named("gone") else { return };
    if !network.lossy(&["--link-latency", "1ms"]) {
        return;
    }
    let Some(process) = network.relay_process() else {
        gleaner_skips::skip("no-netem", "this kernel has netem, so there is no relay");
        return network.down();
    };
    let table = text(&network.run("status", &[]).stdout);
    assert!(table.contains("a relay carries all packets"), "{table}");
    let kill = |process: &str| std::process::Command::new("kill").args(["-9", process]).status().unwrap();
    assert!(kill(&process).success());
    let until = Instant::now() + PATIENCE;
    while network.relay_process().is_some() {
        assert!(Instant::now() < until, "it does not end");
    }
    let table = text(&network.run("status", &[]).stdout);
    let sentence = format!("the relay of the network {} does not answer", network.name);
    assert!(table.contains(&sentence) && table.contains("--replace"), "{table}");
    assert!(network.lossy(&["--link-latency", "1ms", "--replace"]));
    let again = network.relay_process().unwrap();
    assert_ne!(again, process);
    network.down();
    assert_eq!(network.relay_process(), None);
    assert!(!std::path::Path::new(&format!("/run/gleaner/{}.relay", network.name)).exists());
}

/// Whenever an `up` is killed, `down` ends the relay that it has started.
#[test]
fn a_relay_of_a_killed_up_is_removed() {
    let Some(network) = Network::named("half") else { return };
    if !network.lossy(&["--link-latency", "1ms"]) || network.relay().is_null() {
        return;
    }
    network.down();
    let mut had_relay = 0;
    let options = ["--hosts", "6", "--link-latency", "1ms"];
    let part = network.part_of_up(&options);
    for wait in (4..).map(|parts| parts * part) {
        let mut up = testbed(&[&["up", "--name", &network.name], &options[..]].concat());
        let mut up = up.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        sleep(wait);
        let ended = up.try_wait().unwrap();
        up.kill().unwrap();
        up.wait().unwrap();
        had_relay += usize::from(network.relay_process().is_some());
        network.run("down", &[]);
        assert_eq!(namespaces(&network.name), [""; 0], "{wait:?}");
        // One that had only just started finds its network gone, and ends by itself.
        let until = Instant::now() + PATIENCE;
        while network.relay_process().is_some() {
            assert!(Instant::now() < until, "{wait:?}: the relay is left");
            sleep(Duration::from_millis(5));
        }
        if ended.is_some() {
            break;
        }
    }
    assert!(had_relay > 0);
}
