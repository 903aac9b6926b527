//! `gleaner testbed vm` as a user meets it: real machines, real signals. Each takes some seconds to start, so they check
//! several things at once, and one starts after the other, since they measure time.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

#[path = "verbs/lacks.rs"]
mod lacks;

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use lacks::can_be_here;

/// How long a busy machine may need for what should happen soon.
const PATIENCE: Duration = Duration::from_secs(300);

/// Lets one test have the processors.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The subcommand with a shared folder that also holds all temporary files.
fn vm(share: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gleaner"));
    command.args(["testbed", "vm", "--limit", "5m", "--share"]).arg(share);
    command.current_dir(share).env("TMPDIR", share).stdin(Stdio::null());
    command
}

/// Runs it to its end, or says why that cannot be here.
fn ended(command: &mut Command) -> Option<Output> {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    can_be_here(output.status.code(), &said).then_some(output)
}

/// The command lines of processes that have a word in theirs.
fn processes_with(word: &str) -> Vec<String> {
    let lines = gleaner_processes::all().map(|process| process.command().join(" "));
    lines.filter(|line| line.contains(word)).collect()
}

/// Waits until something is so.
fn until(what: &str, mut so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !so() {
        assert!(since.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        sleep(Duration::from_millis(50));
    }
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap().success());
}

/// Nothing is left of a machine: no process and no temporary file.
fn nothing_is_left(share: &Path) {
    let word = share.to_string_lossy().into_owned();
    until("qemu has ended", || processes_with(&word).iter().all(|line| !line.contains("qemu")));
    let names = names(share);
    assert!(names.iter().all(|name| !name.starts_with("gleaner-machine")), "{names:?}");
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn output_files_and_the_exit_code_come_back() {
    let _alone = alone();
    let share = tempfile::tempdir().unwrap();
    let binary: Vec<u8> = (0..=255).cycle().take(200_001).collect();
    fs::write(share.path().join("in"), &binary).unwrap();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("file"), "before").unwrap();
    let script = format!(
        "cat in; cat in in >&2; printf end; printf end >/dev/stderr
         mkdir folder; cat in in in >folder/three; ln -s three folder/link
         echo after >{outside}/file; cat {outside}/file >overlay
         cat >stdin; pwd >pwd; printf '%s' \"$WORD\" >word; gleaner --version >version; id -u >user
         sleep 1000 & exit 7",
        outside = outside.path().display()
    );
    let word = " it's a\n'word' ";
    let mut command = vm(share.path());
    command.env("WORD", word).args(["--json", "--", "sh", "-c", &script]);
    let Some(output) = ended(&mut command) else { return };
    let text = |name: &str| fs::read_to_string(share.path().join(name)).unwrap();

    assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
    let expected = [&binary[..], b"end"].concat();
    let (out, summary) = output.stdout.split_at(expected.len().min(output.stdout.len()));
    assert!(out == expected, "{} bytes of standard output", output.stdout.len());
    assert!(
        output.stderr == [&binary[..], &expected].concat(),
        "{} bytes of standard error",
        output.stderr.len()
    );
    let summary: serde_json::Value = serde_json::from_slice(summary).unwrap();
    assert_eq!(summary["exit_code"], 7);
    assert!(summary["seconds_starting"].as_f64().unwrap() > 0.0 && summary["reason"].is_null(), "{summary}");

    assert!(fs::read(share.path().join("folder/link")).unwrap() == binary.repeat(3));
    assert_eq!(text("overlay"), "after\n");
    assert_eq!(fs::read_to_string(outside.path().join("file")).unwrap(), "before");
    assert_eq!(text("stdin"), "");
    assert_eq!(Path::new(text("pwd").trim()), share.path().canonicalize().unwrap());
    assert_eq!(text("word"), word);
    assert_eq!(text("version"), format!("gleaner {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(text("user"), "0\n");
    nothing_is_left(share.path());
}

/// Two namespaces and a link between them. Then, for each delay, as many milliseconds each way; then the same for the four times
/// that a packet and its answer go over a link of an emulated network; then Soft-RoCE. Then it waits to be
/// interrupted.
const NETWORK: &str = "
set -e
ip netns add a; ip netns add b
ip link add va netns a type veth peer name vb netns b
ip -n a addr add 10.77.0.1/24 dev va; ip -n a link set va up
ip -n b addr add 10.77.0.2/24 dev vb; ip -n b link set vb up
ip netns exec a ping -c 30 -i 0.1 10.77.0.2 >0
tc -n a qdisc add dev va root netem delay 0; tc -n b qdisc add dev vb root netem delay 0
for delay in 5 20; do
    tc -n a qdisc change dev va root netem delay ${delay}ms
    tc -n b qdisc change dev vb root netem delay ${delay}ms
    ip netns exec a ping -c 30 -i 0.1 10.77.0.2 >$delay
done
for delay in 1 5; do
    gleaner testbed up --name delayed --hosts 2 --link-latency ${delay}ms >hosts
    gleaner testbed exec --name delayed host0 -- ping -c 30 -i 0.1 10.77.0.2 >links$delay
    gleaner testbed down --name delayed
done
tc -n a qdisc replace dev va root tbf rate 10mbit burst 16k latency 20ms
tc -n a qdisc show dev va >tbf
ping -c 1 127.0.0.1 >loopback

ip link add v1 type veth peer name v2
ip addr add 10.78.0.1/24 dev v1; ip link set v1 up; ip link set v2 up
rdma link add rxe0 type rxe netdev v1
ibv_devices >devices
ibv_rc_pingpong -d rxe0 -g 1 -n 50 >server & server=$!
for try in 1 2 3 4 5 6 7 8 9 10; do
    sleep 1
    if ibv_rc_pingpong -d rxe0 -g 1 -n 50 10.78.0.1 >client; then break; fi
done
wait $server
echo measured
sleep 1000
";

/// The times of a ping, in milliseconds.
fn round_trips(text: &str) -> Vec<f64> {
    text.lines().filter_map(|line| line.split_once("time=")?.1.split(' ').next()?.parse().ok()).collect()
}

/// The fastest of many is asked for: a machine without processors of its own delays some of them, and hastens none. Ctrl-C then ends
/// the machine, from which all has been written.
#[test]
fn a_round_trip_takes_as_long_as_asked_soft_roce_works_and_ctrl_c_ends_the_machine() {
    let _alone = alone();
    let share = tempfile::tempdir().unwrap();
    let mut command = vm(share.path());
    command.args(["--", "sh", "-c", NETWORK]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut printed = [0; 9];
    if child.stdout.as_mut().unwrap().read_exact(&mut printed).is_ok() {
        assert_eq!(&printed, b"measured\n");
        // What the machine was started from is gone by then, so that even a kill leaves no file.
        assert!(names(share.path()).iter().all(|name| !name.starts_with("gleaner-machine")));
        signal(&child, "INT");
    }
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if !can_be_here(output.status.code(), &said) {
        return;
    }
    assert_eq!(output.status.code(), Some(130), "{said}");
    nothing_is_left(share.path());
    let text = |name: &str| fs::read_to_string(share.path().join(name)).unwrap();
    let fastest = |name: &str| {
        let trips = round_trips(&text(name));
        assert_eq!(trips.len(), 30, "{}", text(name));
        trips.into_iter().fold(f64::INFINITY, f64::min)
    };
    println!("round trips, fastest of 30: {} ms, {} ms, {} ms", fastest("0"), fastest("5"), fastest("20"));
    // What the machine itself takes.
    let own = fastest("0");
    assert!(own < 5.0, "{}", text("0"));
    for (name, asked) in [("5", 10.0), ("20", 40.0)] {
        let measured = fastest(name);
        let is_right = measured >= asked && measured - own < asked * 1.2;
        assert!(is_right, "asked for {asked} ms: {measured} ms, of {own} ms without delays");
    }
    println!("over emulated links: {} ms, {} ms", fastest("links1"), fastest("links5"));
    // Four queues, each of which a machine without processors of its own serves a little late.
    for (name, asked) in [("links1", 4.0), ("links5", 20.0)] {
        let measured = fastest(name);
        assert!((asked..asked + 8.0).contains(&measured), "asked for {asked} ms: {measured} ms");
    }
    assert!(text("tbf").contains("rate 10Mbit"), "{}", text("tbf"));
    assert!(text("loopback").contains("1 received"), "{}", text("loopback"));
    assert!(text("devices").contains("rxe0"), "{}", text("devices"));
    for side in ["server", "client"] {
        assert!(text(side).contains("50 iters in"), "{}", text(side));
    }
}

/// The same links by netem and by the relay: how long round trips take, how many packets are lost, and what TCP carries with and
/// without loss.
const BOTH: &str = "
set -e
# Not in the shared folder, where iperf3 cannot use a file that it has removed.
export TMPDIR=/run
carries() {
    ip netns exec both.host1 iperf3 -s >server & server=$!
    for try in 1 2 3 4 5 6 7 8 9 10; do
        sleep 0.5
        ip netns exec both.host0 iperf3 -c 10.77.0.2 -t $1 -O 1 -J >$2 || true
        if grep -q sum_received $2; then break; fi
    done
    kill $server
    wait $server || true
}
for by in netem relay; do
    if [ $by = relay ]; then option=--relay; else option=; fi
    gleaner testbed up --name both --hosts 2 --bandwidth 20mbit --link-latency 5ms $option >hosts
    ip netns exec both.host0 ping -c 50 -i 0.05 10.77.0.2 >$by.trips
    carries 4 $by.rate
    gleaner testbed down --name both
    gleaner testbed up --name both --hosts 2 --bandwidth 20mbit --link-latency 5ms --loss 1% $option >hosts
    ip netns exec both.host0 ping -q -c 2000 -i 0.003 10.77.0.2 >$by.loss
    carries 8 $by.lossy
    gleaner testbed status --name both --json >$by.status
    gleaner testbed down --name both
done
";

/// How many packets of a ping were lost.
fn lost(text: &str) -> f64 {
    let line = text.lines().find(|line| line.contains("packets transmitted")).unwrap();
    let numbers: Vec<f64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    numbers[0] - numbers[1]
}

#[test]
#[ignore = "takes minutes, and needs processors that nothing else uses"]
fn a_relay_delays_and_loses_as_netem_does() {
    let _alone = alone();
    let share = tempfile::tempdir().unwrap();
    let Some(output) = ended(vm(share.path()).args(["--", "sh", "-c", BOTH])) else { return };
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let text = |name: &str| fs::read_to_string(share.path().join(name)).unwrap();
    let json = |name: &str| serde_json::from_str::<serde_json::Value>(&text(name)).unwrap();
    let rate = |name: &str| json(name)["end"]["sum_received"]["bits_per_second"].as_f64().unwrap() / 1e6;
    let measured = ["netem", "relay"].map(|by| {
        let mut trips = round_trips(&text(&format!("{by}.trips")));
        assert_eq!(trips.len(), 50);
        trips.sort_by(f64::total_cmp);
        let lost = lost(&text(&format!("{by}.loss")));
        let (rate, lossy) = (rate(&format!("{by}.rate")), rate(&format!("{by}.lossy")));
        println!(
            "{by}: round trips of {:.1} ms at least and {:.1} in the median, {lost} of 2000 lost, TCP {rate:.1} Mbit/s, \
             with loss {lossy:.1}",
            trips[0], trips[25]
        );
        [trips[0], lost, rate, lossy]
    });
    let relay = &json("relay.status")["networks"][0]["relay"];
    println!("relay: {relay}");
    assert!(json("netem.status")["networks"][0]["relay"].is_null() && relay["lost"].as_u64() > Some(50));
    // Four delays; a machine without processors of its own serves each a little late. Four chances to be lost, and five
    // standard deviations.
    let expected = 2000.0 * (1.0 - f64::powi(0.99, 4));
    for [trip, lost, rate, _] in measured {
        assert!((20.0..28.0).contains(&trip), "{trip} ms");
        assert!((lost - expected).abs() < 5.0 * f64::sqrt(expected), "{lost} lost, {expected:.0} expected");
        assert!((15.0..20.0).contains(&rate), "{rate} Mbit/s");
    }
    // What is left of the rate follows from the losses, a hundred or so of each, and from the round trip.
    let [[.., netem], [.., relay]] = measured;
    assert!(relay < 10.0 && (0.6..1.67).contains(&(relay / netem)), "{relay} and {netem} Mbit/s");
}

#[test]
fn a_panic_of_the_kernel_is_reported() {
    let _alone = alone();
    let share = tempfile::tempdir().unwrap();
    let script = "echo 1 >/proc/sys/kernel/sysrq; echo c >/proc/sysrq-trigger; sleep 100";
    let Some(output) = ended(vm(share.path()).args(["--", "sh", "-c", script])) else { return };
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("Kernel panic"), "{said}");
    nothing_is_left(share.path());
}

/// Then no process is there to remove the temporary files, but the processor is free again.
#[test]
fn a_killed_command_takes_the_machine_with_it() {
    let _alone = alone();
    let share = tempfile::tempdir().unwrap();
    let mut child = vm(share.path()).args(["--", "true"]).stderr(Stdio::piped()).spawn().unwrap();
    let word = share.path().join("gleaner-machine-").to_string_lossy().into_owned();
    let qemu = || processes_with(&word).iter().any(|line| line.contains("-accel"));
    let mut early = None;
    until("qemu runs", || {
        early = child.try_wait().unwrap();
        qemu() || early.is_some()
    });
    if early.is_some() {
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!can_be_here(output.status.code(), &said), "qemu was not seen: {said}");
        return;
    }
    signal(&child, "KILL");
    child.wait().unwrap();
    until("qemu has ended", || !qemu());
}

#[test]
fn what_cannot_be_is_reported_in_a_sentence() {
    let share = tempfile::tempdir().unwrap();
    let file = share.path().join("file");
    fs::write(&file, "").unwrap();
    let refused = |command: &mut Command, words: &[&str]| {
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
        assert!(output.stdout.is_empty());
    };
    refused(
        vm(share.path()).env("PATH", "").args(["--", "true"]),
        &["qemu-system-x86_64", "apt-get install"],
    );

    // What follows is found out before anything is fetched, with programs that are not run.
    let programs = tempfile::tempdir().unwrap();
    for name in ["qemu-system-x86_64", "setpriv"] {
        fs::write(programs.path().join(name), "").unwrap();
    }
    let path = programs.path();
    refused(vm(&file).env("PATH", path).current_dir(path).args(["--", "true"]), &["file", "--share"]);
    refused(vm(Path::new("/")).env("PATH", path).args(["--", "true"]), &["cannot share /;"]);
    refused(vm(&share.path().join("no")).env("PATH", path).current_dir(path).args(["--", "true"]), &["/no"]);
    // There is no package server behind this file.
    let mut command = vm(share.path());
    command.env("PATH", path).env("XDG_CACHE_HOME", share.path().join("cache")).args(["--", "true"]);
    refused(&mut command, &["apt-get", "Debian package"]);
    let left = fs::read_dir(share.path().join("cache/gleaner")).unwrap().flat_map(|entry| {
        fs::read_dir(entry.unwrap().path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect::<Vec<_>>()
    });
    assert!(left.into_iter().all(|name| name == "lock"));
}
