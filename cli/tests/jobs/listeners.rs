//! Where workers listen, and that no other program takes their port before.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use crate::job::{Job, steps_done};
use crate::process::{eventually, gleaner, listening, ports, start};

/// An address of this host that others reach it by, if there is one.
fn own_address() -> Option<Ipv4Addr> {
    let probe = UdpSocket::bind("0.0.0.0:0").unwrap();
    let local = probe.connect("192.0.2.1:9").and_then(|()| probe.local_addr());
    match local.map(|local| local.ip()) {
        Ok(IpAddr::V4(own)) => Some(own),
        _ => {
            gleaner_skips::skip("interface", "this host has no interface but the loopback one");
            None
        }
    }
}

#[test]
fn workers_listen_where_they_are_reached_and_nowhere_else() {
    for own in own_address().into_iter().chain([Ipv4Addr::LOCALHOST]) {
        let job = Job::new(3, &["--params", "1000", "--method", "ring", "--steps", "100000000"]);
        let rendezvous = format!("{own}:{}", job.port);
        let rank = |rank| job.rank_with(rank, &[], &[("GLEANER_RENDEZVOUS", &rendezvous)]);
        let mut ranks = [rank(0), rank(1), rank(2)];
        steps_done(&mut ranks[0], 3);
        for rank in &ranks {
            let expected = format!("{:08X}", u32::from_ne_bytes(own.octets()));
            let places = listening(rank.id());
            assert!(places.len() == 1 && places[0].0 == expected, "{places:?}, and it should be {own}");
        }
    }
}

#[test]
fn no_program_takes_the_port_of_rank_0_before_it_listens() {
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let mut command = gleaner();
    command.args(["launch", "--workers", "2", "--", "sh", "-c"]);
    let wait = "[ $GLEANER_RANK != 0 ] || while [ ! -e \"$1\" ]; do sleep 0.05; done";
    let bench = "exec \"$0\" bench --json --params 100 --steps 5 --method ring";
    command.arg(format!("{wait}; {bench}")).arg(env!("CARGO_BIN_EXE_gleaner")).arg(&go);
    let mut process = start(command);
    let mut port = None;
    eventually("the workers start", || {
        let environments =
            process.family().into_iter().map(|id| std::fs::read(format!("/proc/{id}/environ")));
        let all = environments.flatten().flatten().collect::<Vec<u8>>();
        let text = String::from_utf8_lossy(&all);
        let found = text.split_once("GLEANER_RENDEZVOUS=127.0.0.1:").map(|(_, rest)| rest.to_owned());
        port = found.and_then(|rest| rest.split('\0').next()?.parse::<u16>().ok());
        port.is_some()
    });
    let address = ("127.0.0.1", port.unwrap());
    for _ in 0..100 {
        // With the option that lets servers begin where others have ended, which is set here.
        assert_eq!(TcpListener::bind(address).unwrap_err().kind(), ErrorKind::AddrInUse);
        // It is not listened at yet.
        assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        std::thread::sleep(Duration::from_millis(10));
    }
    std::fs::write(&go, "").unwrap();
    eventually("rank 0 listens", || {
        let listens = |id: &u32| ports(*id).contains(&address.1);
        !process.runs() || process.family().iter().any(listens)
    });
    process.end(Duration::from_secs(20)).report();
}
