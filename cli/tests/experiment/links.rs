//! Emulated links: cuts, rates, topologies and delays.

use std::fs;

use gleaner_statistics::median;
use gleaner_testbed::record::{Outcome, Record};

use super::{Bed, SHORT, can_emulate, named, namespaces, reason, steps};

#[test]
fn a_cut_that_is_mended_is_survived_and_one_that_stays_is_named() {
    if !can_emulate() {
        return;
    }
    // A ring that spends its time on the wire: 133 kB of each step at 10 Mbit/s.
    let network = "[network]\nbandwidth = '10mbit'\n";
    let text = SHORT.replace("steps = 3", "steps = 12\ntimeout = '15s'\nmethod = 'ring'");
    let text = text.replace("params = 2000", "params = 25_000");
    let cut = "[[chaos]]\nstep = 3\ndo = 'cut'\nhost = 2\nfor = '3s'\n";
    let bed = Bed::new(&format!("{text}{network}{cut}"));
    let (code, said) = bed.run(&["--name", &named("cutmend")]);
    assert_eq!(code, 0, "{said}");
    let records = bed.records();
    // Twelve steps take 1.3 s on the wire; nine of them come after the cut, which may last longer for TCP than for the link.
    assert_eq!(steps(&records[0]).len(), 12);
    assert!((3.9..20.0).contains(&records[0].seconds), "{records:?}");
    assert!(records[0].traffic.len() == 3 && records[0].traffic.iter().all(|host| host.received > 1_000_000));

    let text = SHORT.replace("steps = 3", "steps = 100_000\ntimeout = '5s'");
    let bed = Bed::new(&format!("{text}{network}[[chaos]]\nstep = 10\ndo = 'cut'\nhost = 2\n"));
    let (code, said) = bed.run(&["--name", &named("cutgood")]);
    assert_eq!(code, 0, "{said}");
    let records = bed.records();
    assert!(reason(&records[0]).starts_with("rank 2 failed"), "{}", reason(&records[0]));
    assert!(records[0].seconds < 25.0, "{records:?}");
    for name in ["cutmend", "cutgood"] {
        assert_eq!(namespaces(&named(name)), [""; 0]);
    }
}

#[test]
fn rates_of_the_matrix_are_those_of_the_links() {
    if !can_emulate() {
        return;
    }
    let text = SHORT
        .replace("params = 2000", "params = 250_000\nmethod = 'ring'\nfloor = true")
        .replace("workers = 3", "workers = 2");
    let chaos = "[[chaos]]\nstep = 0\ndo = 'reshape'\nhost = 1\nbandwidth = '20mbit'\ncases = { bandwidth = '1gbit' }\n";
    let text = text.replace("turns = 1", "turns = 3");
    let bed =
        Bed::new(&format!("{text}[network]\n[matrix]\nbandwidth = ['100mbit', '10mbit', '1gbit']\n{chaos}"));
    let (code, said) = bed.run(&["--name", &named("rates")]);
    assert_eq!(code, 0, "{said}");
    // Each of two workers receives 1 MB in a ring; links carry at least two thirds of what they are set to in such bursts. A
    // busy machine may be slower than its links, but not in every turn.
    let records = bed.records();
    for (asked, rate) in [("100mbit", 100e6), ("10mbit", 10e6), ("1gbit", 20e6)] {
        let least = 8e6 / rate;
        let of_this: Vec<&Record> =
            records.iter().filter(|record| record.case["bandwidth"] == asked).collect();
        let took: Vec<f64> = of_this.iter().map(|record| median(steps(record))).collect();
        assert!(took.len() == 3 && took.iter().all(|took| *took > 0.6 * least), "{asked}: {took:?} s");
        assert!(
            took.iter().any(|took| *took < 2.0 * least + 0.05),
            "{asked}: {took:?} s, {least} s at least"
        );
        // The floor is of the rate that is asked for, whatever chaos makes of it.
        let bytes_per_second = gleaner_units::rate(asked).unwrap().bytes_per_second();
        for record in of_this {
            let Outcome::Done(report) = &record.outcome else { panic!("{record:?}") };
            let number = |field: &str| report[field].as_f64().unwrap();
            let sent = number("bytes_per_step") / bytes_per_second;
            assert!((sent..2.0 * sent + 0.1).contains(&number("seconds_floor")), "{asked}: {report}");
        }
    }
    assert_eq!(namespaces(&named("rates")), [""; 0]);
}

/// What holds the ring back is the one link between two groups of hosts, whose own links have no limit.
#[test]
fn the_links_of_a_topology_file_are_those_of_the_run() {
    if !can_emulate() {
        return;
    }
    let text = SHORT.replace("params = 2000", "params = 100_000\nmethod = 'ring'");
    let bed = Bed::new(&format!("{text}[network]\ntopology = 'racks.toml'\n"));
    let topology = |uplink: &str| {
        let groups = "[[group]]\nname = 'east'\nhosts = 2\n[[group]]\nname = 'west'\nhosts = 1\n";
        let text = format!("{groups}[uplink.west]\nbandwidth = '{uplink}'\n");
        fs::write(bed.directory.path().join("racks.toml"), &text).unwrap();
        text
    };
    let run = |more: &[&str]| bed.run(&[&["--name", &named("racks")], more].concat());
    let asked = topology("20mbit");
    let (code, said) = run(&[]);
    assert_eq!((code, namespaces(&named("racks"))), (0, Vec::new()), "{said}");
    let [record] = &bed.records()[..] else { panic!("{said}") };
    // Each of three workers receives 4/3 of the gradient's bytes; in bursts, a link is a little faster.
    let least = 8.0 * 4.0 * 100_000.0 * 4.0 / 3.0 / 20e6;
    let took = median(steps(record));
    assert!(took > 0.6 * least, "{took} s, {least} s at least");
    assert_eq!(record.case["topology"], "racks.toml");
    let hosts: Vec<&str> = record.traffic.iter().map(|traffic| traffic.host.as_str()).collect();
    assert_eq!(hosts, ["east0", "east1", "west0"]);
    assert!(record.traffic.iter().all(|host| host.received > 3 * 533_333), "{record:?}");
    assert_eq!(fs::read_to_string(bed.out().join("topology.toml")).unwrap(), asked);

    // With another uplink it is another experiment, and faster.
    topology("2gbit");
    let (code, said) = run(&["--resume"]);
    assert!(code == 1 && said.contains("its topology.toml differs"), "{said}");
    fs::remove_dir_all(bed.out()).unwrap();
    let (code, said) = run(&[]);
    assert_eq!(code, 0, "{said}");
    let fast = median(steps(&bed.records()[0]));
    assert!(fast < 0.5 * took, "{fast} s, and {took} s over a hundredth of the uplink's rate");

    // As many hosts as the file has, and no more.
    bed.write(&format!("{text}[network]\ntopology = 'racks.toml'\n").replace("workers = 3", "workers = 4"));
    fs::remove_dir_all(bed.out()).unwrap();
    let (code, said) = run(&[]);
    assert!(code == 1 && said.contains("a case has 4 workers, and the topology has 3 hosts"), "{said}");
    assert_eq!(namespaces(&named("racks")), [""; 0]);
}

/// A delay is kept where the kernel has netem or a relay does its work. Where neither can be, that is said before the first case is
/// measured, though only the second one needs it.
#[test]
fn delays_are_kept_or_refused_beforehand() {
    if !can_emulate() {
        return;
    }
    let bed = Bed::new(&format!("{SHORT}[network]\n[matrix]\nlink_latency = ['0us', '20ms']\n"));
    let (code, said) = bed.run(&["--name", &named("delays")]);
    let records = bed.records();
    if code == 0 {
        assert!(median(steps(&records[1])) > 0.02, "{records:?}");
        assert!(median(steps(&records[0])) < 0.5 * median(steps(&records[1])), "{records:?}");
    } else {
        assert!(said.contains("netem") && said.contains("gleaner testbed vm"), "{said}");
        assert!(records.is_empty(), "{records:?}");
    }
    assert_eq!(namespaces(&named("delays")), [""; 0]);
}

/// Arguments of the launcher, and what TCP uses on the hosts, vary from case to case like anything else.
#[test]
fn transports_sockets_and_congestion_controls_are_axes() {
    if !can_emulate() {
        return;
    }
    let axes = "[network]\ncongestion = 'reno'\n[matrix]\ntransport = ['tcp']\nsockets = [1, 3]\n";
    let bed = Bed::new(&format!("{SHORT}{axes}"));
    let (code, said) = bed.run(&["--name", &named("axes")]);
    assert_eq!(code, 0, "{said}");
    let records = bed.records();
    for (record, sockets) in records.iter().zip(["1", "3"]) {
        let words = ["--transport", "tcp", "--sockets", sockets];
        assert!(record.command.windows(4).any(|found| found == words), "{:?}", record.command);
        assert_eq!((&record.case["congestion"], steps(record).len()), (&"reno".into(), 3));
    }
    assert_eq!(records.len(), 2);

    let bed = Bed::new(&format!("{SHORT}{}", axes.replace("reno", "none-such")));
    let (code, said) = bed.run(&["--name", &named("axes")]);
    assert!(code == 1 && said.contains("no congestion control none-such"), "{said}");
    assert!(bed.records().is_empty() && namespaces(&named("axes")).is_empty());
}
