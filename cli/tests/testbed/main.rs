//! Emulated networks from outside: what `gleaner testbed up` makes, what its links carry, and that `down` leaves nothing.
//!
//! Every test has a network of its own, so that they can run at the same time.

#![allow(clippy::unwrap_used)]

mod chaos;
mod drift;
mod jobs;
mod relays;
mod transfers;
mod unequal;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

fn testbed(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gleaner"));
    command.arg("testbed").args(arguments);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The namespaces of a network, by `ip netns`.
fn namespaces(network: &str) -> Vec<String> {
    let output = Command::new("ip").args(["netns", "list"]).output().unwrap();
    let names = text(&output.stdout);
    let names = names.lines().filter_map(|line| line.split(' ').next());
    let ours = |name: &&str| *name == network || name.starts_with(&format!("{network}."));
    names.filter(ours).map(str::to_owned).collect()
}

/// A network of one test, which is gone after it.
struct Network {
    name: String,
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = testbed(&["down", "--name", &self.name]).output();
    }
}

impl Network {
    /// The name of a network that is not there yet; none where there can be none.
    fn named(part: &str) -> Option<Self> {
        let tried = Command::new("unshare")
            .args(["--net", "sh", "-c"])
            .arg("ip link add name a type veth peer name b && ip link add name c type bridge && tc qdisc add dev a root tbf rate 1gbit burst 128k limit 256k")
            .output();
        match tried {
            Ok(output) if output.status.success() => {
                Some(Self { name: format!("{part}-{}", std::process::id()) })
            }
            _ => {
                let why =
                    "emulated networks take root, the commands ip, tc and unshare, and a kernel with tbf";
                gleaner_skips::skip("tbf", why);
                None
            }
        }
    }

    fn run(&self, subcommand: &str, arguments: &[&str]) -> Output {
        testbed(&[&[subcommand, "--name", &self.name], arguments].concat()).output().unwrap()
    }

    fn up(&self, arguments: &[&str]) {
        let output = self.run("up", arguments);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }

    fn up_with(&self, topology: &str) {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), topology).unwrap();
        self.up(&["--topology", file.path().to_str().unwrap()]);
    }

    /// A twentieth of how long an `up` takes here.
    fn part_of_up(&self, arguments: &[&str]) -> Duration {
        let begun = Instant::now();
        self.up(arguments);
        let took = begun.elapsed();
        self.down();
        took / 20
    }

    /// It ends with code 1 and a sentence that has these words.
    fn refuses(&self, subcommand: &str, arguments: &[&str], words: &[&str]) {
        let output = self.run(subcommand, arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.starts_with("gleaner: ") && said.lines().count() == 1, "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    }

    fn down(&self) {
        let output = self.run("down", &[]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(namespaces(&self.name), [""; 0]);
    }
}

/// The machine's own interfaces and namespaces, before, during and after; in a network of its own, where no other process
/// changes any.
#[test]
fn nothing_is_left_and_nothing_else_is_touched() {
    if Network::named("whole").is_none() {
        return;
    }
    let script = r#"
        set -e
        mount -t tmpfs none /run
        ip link add name mine type veth peer name yours
        ip netns add mine
        look() { ip -o link show; tc qdisc show; ip address show; ip route show table all; ip netns list; }
        look > /run/before
        "$1" testbed up --hosts 5 --bandwidth 1gbit > /run/hosts
        look | grep -v '^gleaner' > /run/during
        diff /run/before /run/during
        ip netns list | grep -c '^gleaner' | grep -qx 6
        "$1" testbed down
        "$1" testbed up --hosts 5 --bandwidth 1gbit --name a > /run/hosts
        "$1" testbed up --hosts 2 --name b > /run/hosts
        "$1" testbed down --all
        look > /run/after
        diff /run/before /run/after
        rm /run/before /run/during /run/after /run/hosts
        ls -A /run/gleaner
    "#;
    let output = Command::new("unshare")
        .args(["--net", "--mount", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_gleaner")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    assert_eq!(text(&output.stdout), "");
}

#[test]
fn a_full_disk_is_a_sentence_and_leaves_nothing() {
    if Network::named("full").is_none() {
        return;
    }
    let script = r#"
        mount -t tmpfs -o size=64k none /run || exit
        "$1" testbed up --hosts 2 > /dev/full && exit 10
        ip netns list | grep . && exit 11
        ls -A /run/gleaner | grep . && exit 12
        head -c 100k /dev/zero > /run/full
        "$1" testbed up --hosts 2 && exit 13
        ip netns list | grep . && exit 14
        rm /run/full
        "$1" testbed up --hosts 2 > /dev/null && "$1" testbed down
    "#;
    let output = Command::new("unshare")
        .args(["--net", "--mount", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_gleaner")])
        .output()
        .unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{}{said}", text(&output.stdout));
    assert!(said.contains("the hosts cannot be printed") && said.contains("/run/gleaner"), "{said}");
    assert!(!said.contains("still there"), "{said}");
}

#[test]
fn what_a_killed_up_made_is_removed() {
    let Some(network) = Network::named("killed") else { return };
    let mut half_made = 0;
    let options = ["--hosts", "24", "--bandwidth", "1gbit"];
    let part = network.part_of_up(&options);
    // Each time it is killed a little later.
    for parts in 0.. {
        let mut up = testbed(&[&["up", "--name", &network.name], &options[..]].concat());
        let mut up = up.stdout(Stdio::null()).spawn().unwrap();
        sleep(parts * part);
        let ended = up.try_wait().unwrap();
        up.kill().unwrap();
        up.wait().unwrap();
        let made = namespaces(&network.name).len();
        let state = fs::read_to_string(format!("/run/gleaner/{}.json", network.name)).unwrap_or_default();
        if made > 0 && ended.is_none() && state.contains("\"complete\": false") {
            half_made += 1;
            network.refuses("up", &["--hosts", "2"], &["half-made"]);
            network.refuses("exec", &["host0", "--", "true"], &["half-made"]);
        }
        let down = network.run("down", &[]);
        // Before anything was written, there is nothing to remove.
        assert!(down.status.success() || (made == 0 && text(&down.stderr).contains("there is no network")));
        assert_eq!(namespaces(&network.name), [""; 0], "{:?}", parts * part);
        if ended.is_some() {
            break;
        }
    }
    assert!(half_made > 0);
}

#[test]
fn an_interrupted_up_leaves_nothing() {
    let Some(network) = Network::named("interrupted") else { return };
    for (signal, number) in [("INT", 130), ("TERM", 143)] {
        let output = interrupted_up(&network, signal);
        assert_eq!(
            (output.status.code(), output.stdout.len()),
            (Some(number), 0),
            "{}",
            text(&output.stderr)
        );
        assert_eq!(namespaces(&network.name), [""; 0]);
    }
}

/// What an `up` printed that was half done when the signal came. On a busy machine one may be whole before that: then it is
/// tried again.
fn interrupted_up(network: &Network, signal: &str) -> Output {
    for _ in 0..10 {
        let mut up = testbed(&["up", "--name", &network.name, "--hosts", "24"]);
        let mut up = up.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while namespaces(&network.name).is_empty() && up.try_wait().unwrap().is_none() {
            assert!(Instant::now() < until, "no namespace within a minute");
            sleep(Duration::from_millis(1));
        }
        // To the whole group, as a terminal does it. One that has ended by itself gets nothing.
        let group = format!("-{}", up.id());
        let _ = Command::new("kill").args(["-s", signal, "--", &group]).output().unwrap();
        let output = up.wait_with_output().unwrap();
        if output.status.code() != Some(0) {
            return output;
        }
        network.down();
    }
    panic!("up was faster than the signal ten times");
}

#[test]
fn a_name_that_no_namespace_can_have_is_refused_as_an_argument() {
    let output = testbed(&["up", "--hosts", "2", "--name", "a/b"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("'a/b' cannot be a name; expected letters, digits"));
}

#[test]
fn a_leftover_is_refused_and_replaced() {
    let Some(network) = Network::named("leftover") else { return };
    network.up(&["--hosts", "3", "--bandwidth", "1gbit"]);
    network.refuses("up", &["--hosts", "2"], &["is there already", "--replace", "down --name"]);
    assert_eq!(namespaces(&network.name).len(), 4);
    network.up(&["--hosts", "2", "--replace"]);
    assert_eq!(namespaces(&network.name).len(), 3);
    network.down();
    network.refuses("down", &[], &["there is no network"]);
    network.up(&["--hosts", "1", "--replace"]);
}

#[test]
fn namespaces_of_others_are_never_touched() {
    let Some(network) = Network::named("foreign") else { return };
    let foreign = format!("{}.host1", network.name);
    let netns =
        |verb: &str| assert!(Command::new("ip").args(["netns", verb, &foreign]).status().unwrap().success());
    netns("add");
    for replace in [&[][..], &["--replace"]] {
        let arguments = [&["--hosts", "3"], replace].concat();
        network.refuses("up", &arguments, &[&foreign, "no gleaner testbed made"]);
        assert_eq!(namespaces(&network.name), [foreign.as_str()]);
    }
    network.refuses("down", &[], &["there is no network"]);
    netns("delete");
    // Another user removes one of ours, and makes another of the same name.
    network.up(&["--hosts", "3"]);
    netns("delete");
    netns("add");
    network.refuses("down", &[], &[&foreign, "no gleaner testbed made"]);
    assert_eq!(namespaces(&network.name), [foreign.as_str()]);
    netns("delete");
}

#[test]
fn a_command_on_a_host_is_like_any_other() {
    let Some(network) = Network::named("exec") else { return };
    network.up(&["--hosts", "2"]);
    let exec = |words: &[&str]| testbed(&[&["exec", "--name", &network.name, "host1", "--"], words].concat());
    assert_eq!(exec(&["sh", "-c", "exit 7"]).status().unwrap().code(), Some(7));
    let mut cat = exec(&["cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    cat.stdin.take().unwrap().write_all(b"through").unwrap();
    assert_eq!(text(&cat.wait_with_output().unwrap().stdout), "through");
    let inside = exec(&["ip", "netns", "identify"]).output().unwrap();
    assert_eq!(text(&inside.stdout).trim(), format!("{}.host1", network.name));
    // The command itself gets a Ctrl-C, also where the tests run in the background and ignore it.
    let script = "trap 'echo heard; exit 3' INT; echo ready; while :; do sleep 0.1; done";
    let mut trap = exec(&["env", "--default-signal=INT", "sh", "-c", script]);
    let mut trap = trap.stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = [0; 6];
    trap.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    assert!(Command::new("kill").args(["-s", "INT", &trap.id().to_string()]).status().unwrap().success());
    let output = trap.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(3), "heard\n".into()));
    network.refuses("exec", &["host2", "--", "true"], &["no host host2", "host0, host1"]);
}

#[test]
fn down_ends_what_runs_on_hosts() {
    let Some(network) = Network::named("busy") else { return };
    network.up(&["--hosts", "2"]);
    let sleeper = |script: &str| {
        let words = ["exec", "--name", &network.name, "host0", "--", "sh", "-c", script];
        testbed(&words).stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut polite = sleeper("echo ready; exec sleep 1000");
    let mut deaf = sleeper("trap '' TERM; echo ready; sleep 1000; sleep 1000");
    for process in [&mut polite, &mut deaf] {
        process.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    }
    network.down();
    assert_eq!(polite.wait().unwrap().signal(), Some(15));
    assert_eq!(deaf.wait().unwrap().signal(), Some(9));
}

#[test]
fn bad_input_is_a_sentence() {
    let refused = |arguments: &[&str], words: &str| {
        let output = testbed(&[&["up", "--name", "never"], arguments].concat()).output().unwrap();
        let said = text(&output.stderr);
        let code = if arguments.contains(&"--topology") { 1 } else { 2 };
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
    };
    refused(&["--hosts", "2", "--bandwidth", "fast"], "'fast' is no bandwidth");
    refused(&["--hosts", "2", "--link-latency", "soon"], "'soon' is no time");
    refused(&["--hosts", "2", "--link-latency=-5ms"], "'-5ms' is no time");
    refused(&["--hosts", "2", "--link-latency", "5"], "'5' is no time");
    refused(&["--hosts", "2", "--link-latency", "2000s"], "at most a minute");
    refused(&["--hosts", "2", "--jitter", "1ms"], "--link-latency");
    refused(&["--hosts", "2", "--loss", "all"], "'all' is no loss");
    refused(&["--hosts", "2", "--loss", "100%"], "'100%' is no loss");
    refused(&["--hosts", "2", "--loss", "150%"], "'150%' is no loss");
    refused(&["--hosts", "2", "--link-latency", "1ms", "--seed", "many"], "invalid value 'many'");
    refused(&["--hosts", "300"], "300 hosts do not fit into 10.77.0.0/24");
    refused(&["--hosts", "0"], "no host");
    refused(&["--hosts", "2", "--subnet", "10.77.0.1/24"], "is no subnet");
    refused(&["--topology", "/nowhere.toml"], "/nowhere.toml cannot be read");
    // As a user who is not root, where this binary can be reached then.
    let mut command = testbed(&["up", "--hosts", "2", "--name", "never"]);
    match command.uid(65_534).output() {
        Ok(output) => {
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(1));
            assert!(said.starts_with("gleaner: ") && said.contains("need root"), "{said}");
        }
        Err(error) => {
            gleaner_skips::skip("other-users", format!("no other user can run this binary: {error}"))
        }
    }
}
