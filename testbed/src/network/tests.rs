//! Real namespaces, where this process may make some; the command's own tests measure rates.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::*;
use crate::topology::{Shape, Subnet};
use gleaner_units as units;

/// A network that is removed whatever happens to its test.
struct Guard(Network);

impl Drop for Guard {
    fn drop(&mut self) {
        Network::remove(&self.0.name).unwrap();
    }
}

impl Guard {
    /// None where there can be no network here.
    fn up(name: &str, hosts: usize, link: Link) -> Option<Self> {
        let topology = Topology::uniform(hosts, Subnet::default(), link).unwrap();
        let offers = Kernel::offers();
        if let Err(reason) = offers.and_then(|kernel| kernel.suffices(&topology)) {
            gleaner_skips::skip("tbf", reason);
            return None;
        }
        let name = format!("{name}-{}", std::process::id());
        Some(Self(Network::up(&topology, &name, false, Changes::default()).unwrap()))
    }
}

fn mbit(rate: u32) -> Link {
    let rate = Some(units::rate(&format!("{rate}mbit")).unwrap());
    Link::both(Shape { rate, ..Shape::default() })
}

/// What `tc` says of an interface.
fn shown(namespace: &str, interface: &str) -> String {
    let words = ["tc", "-n", namespace, "qdisc", "show", "dev", interface];
    commands::run(&words, None).unwrap()
}

#[test]
fn a_cut_link_carries_nothing_until_it_is_mended() {
    let Some(mut guard) = Guard::up("cut", 3, mbit(100)) else { return };
    let network = &mut guard.0;
    let hosts = network.hosts();
    let reaches = |from: usize, to: usize, milliseconds| {
        let patience = Duration::from_millis(milliseconds);
        inside::reaches(&hosts[from].namespace, hosts[to].address, patience).unwrap()
    };
    // What is prepared changes nothing, not even when it is thrown away.
    drop(network.plug("host1", false).unwrap());
    for _ in 0..2 {
        let cut = network.plug("host1", false).unwrap();
        assert!(network.cut_hosts().unwrap().is_empty() && reaches(0, 1, 2000));
        cut.go().unwrap();
        assert_eq!(network.cut_hosts().unwrap(), ["host1"]);
        assert!(!reaches(0, 1, 50) && !reaches(1, 2, 50) && reaches(0, 2, 2000));
        let before = network.counters("host1").unwrap();
        assert!(!reaches(0, 1, 50));
        assert_eq!(network.counters("host1").unwrap(), before);
        network.plug("host1", true).unwrap().go().unwrap();
        assert_eq!(network.cut_hosts().unwrap(), [""; 0]);
        // The kernel looks after its interfaces once a second.
        assert!(reaches(0, 1, 2000) && reaches(1, 2, 2000));
        assert!(network.counters("host1").unwrap().received > before.received);
        // The shape outlives the cut.
        assert!(shown(&hosts[1].namespace, INTERFACE).contains("rate 100Mbit"));
        assert!(shown(&network.name, &hosts[1].port).contains("rate 100Mbit"));
    }
    let unknown = network.plug("host3", false).unwrap_err().to_string();
    assert_eq!(unknown, "there is no host host3; there are host0, host1, host2");
}

#[test]
fn a_link_changes_while_it_is_up() {
    let Some(mut guard) = Guard::up("change", 2, mbit(100)) else { return };
    let network = &mut guard.0;
    let host = network.host("host1").unwrap();
    let slower = Link { up: mbit(20).up, down: mbit(30).down };
    network.set_link("host1", slower).unwrap();
    assert!(shown(&host.namespace, INTERFACE).contains("rate 20Mbit"));
    assert!(shown(&network.name, &host.port).contains("rate 30Mbit"));
    assert_eq!(Network::find(&network.name).unwrap().host("host1").unwrap().link, slower);
    network.set_link("host1", Link::default()).unwrap();
    assert!(!shown(&host.namespace, INTERFACE).contains("tbf"));
    assert!(!shown(&network.name, &host.port).contains("tbf"));
    // What cannot be leaves all as it is.
    let never = Link::both(Shape { jitter: Duration::from_secs(1), ..Shape::default() });
    assert!(network.set_link("host1", never).is_err());
    assert_eq!(network.host("host1").unwrap().link, Link::default());
}

/// Whatever waits at a link that becomes slower in the middle of a transfer, the transfer goes on.
#[test]
fn a_transfer_goes_on_when_its_link_becomes_slower() {
    const BYTES: usize = 24 << 20;
    const STALL: Duration = Duration::from_secs(20);
    let Some(mut guard) = Guard::up("midway", 2, mbit(1000)) else { return };
    let network = &mut guard.0;
    let hosts = network.hosts();
    let [to, from] = &hosts[..] else { panic!("two hosts") };
    let listener = inside::within(&to.namespace, || TcpListener::bind((to.address, 0))).unwrap();
    let address = listener.local_addr().unwrap();
    let mut sender = inside::within(&from.namespace, || TcpStream::connect(address)).unwrap();
    let (begun, begins) = mpsc::channel();
    thread::scope(|scope| {
        let (mut receiver, _) = listener.accept().unwrap();
        receiver.set_read_timeout(Some(STALL)).unwrap();
        sender.set_write_timeout(Some(STALL)).unwrap();
        scope.spawn(move || sender.write_all(&vec![0; BYTES]).unwrap());
        scope.spawn(move || {
            begins.recv().unwrap();
            network.set_link("host1", mbit(100)).unwrap();
        });
        let mut taken = vec![0; BYTES];
        let (first, others) = taken.split_at_mut(BYTES / 24);
        receiver.read_exact(first).unwrap();
        begun.send(()).unwrap();
        receiver.read_exact(others).expect("the transfer stalls");
    });
}

#[test]
fn two_at_once_make_one_network() {
    let topology = Topology::uniform(2, Subnet::default(), mbit(100)).unwrap();
    if let Err(reason) = Kernel::offers() {
        gleaner_skips::skip("tbf", reason);
        return;
    }
    let name = format!("twice-{}", std::process::id());
    let made: Vec<_> = std::thread::scope(|scope| {
        let up = || Network::up(&topology, &name, false, Changes::default());
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(up)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let (made, refused): (Vec<_>, Vec<_>) = made.into_iter().partition(Result::is_ok);
    assert_eq!(made.len(), 1, "{refused:?}");
    let is_there = |error: &NetworkError| error.to_string().contains("is there already; remove it");
    assert!(refused.iter().all(|refused| refused.as_ref().is_err_and(is_there)));
    made.into_iter().next().unwrap().unwrap().down().unwrap();
    assert!(matches!(Network::find(&name), Err(NetworkError::None(_))));
}

#[test]
fn a_command_sees_only_its_host() {
    let Some(mut guard) = Guard::up("command", 2, Link::default()) else { return };
    let network = &mut guard.0;
    let output = network.command("host1", "ip").unwrap().args(["-o", "-4", "address"]).output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("10.77.0.2/24") && shown.lines().count() == 2, "{shown}");
    assert!(network.command("host2", "ip").is_err());
    let hostfile = network.hostfile();
    assert_eq!(hostfile, format!("{0}.host0 address=10.77.0.1\n{0}.host1 address=10.77.0.2\n", network.name));
}

fn words(shape: Shape) -> String {
    shape::discipline(&shape, &Kernel::default()).unwrap()
}

fn rate(text: &str) -> Shape {
    Shape { rate: Some(units::rate(text).unwrap()), ..Shape::default() }
}

/// What tc says when it is given a discipline, in a namespace that ends with it.
fn tc_says(words: &str) -> String {
    let script =
        format!("ip link add name one type veth peer name two && tc qdisc add dev one root {words} 2>&1");
    let output = Command::new("unshare").args(["--net", "sh", "-c", &script]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// A bucket is never smaller than two frames nor its queue than two packets of TCP, and a full one is a millisecond.
#[test]
fn buckets_fit_their_rates() {
    assert_eq!(words(rate("1gbit")), "tbf rate 1000000000bit burst 125000b limit 2625000b");
    assert_eq!(
        [rate("1gbit"), rate("300mbit"), rate("10mbit")].map(|shape| shape::at_once(&shape)),
        [65_536, 33_750, 3028]
    );
    assert_eq!(shape::at_once(&Shape::default()), 65_536);
    assert_eq!(words(rate("10mbit")), "tbf rate 10000000bit burst 3028b limit 134100b");
    assert_eq!(shape::discipline(&Shape::default(), &Kernel::default()), None);
}

#[test]
fn tc_understands_its_arguments() {
    if let Err(reason) = Kernel::offers() {
        gleaner_skips::skip("tbf", reason);
        return;
    }
    for text in ["8kbit", "1.5mbit", "1gbit", "100gbit", "1tbit"] {
        assert_eq!(tc_says(&words(rate(text))), "", "{text}");
        for (delay, jitter, loss) in
            [(50_001, 0, "0"), (0, 0, "0.1%"), (30_000_000_000, 30_000_000_000, "0.5")]
        {
            let [delay, jitter] = [delay, jitter].map(Duration::from_nanos);
            let words = words(Shape { delay, jitter, loss: loss.parse().unwrap(), ..rate(text) });
            let said = tc_says(&words);
            // It reads its words before it asks the kernel, which may have no netem.
            assert!(said.is_empty() || said.contains("qdisc kind is unknown"), "{words}: {said}");
        }
    }
}
