//! Several hosts: agents of both kinds, shells of both kinds, namespaces, a real ssh server.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::process::{Ended, eventually, launch, nap, seconds, sleepers};

/// Arguments that break under the slightest quoting mistake.
const ARGUMENTS: [&str; 8] =
    ["a b", "it's", "\"$HOME\"", "two\nlines\n", "`id` $(id) \\ \\n", "", "*", "-n;&|<>#!~é"];

/// An agent for one machine, which hands arguments on like `ip netns exec` or joins them like ssh, and whose `sh` is
/// a chosen shell.
fn agent(folder: &Path, shell: &str, joins: bool) -> String {
    let bin = folder.join("bin");
    fs::create_dir(&bin).unwrap();
    let shell = Command::new("sh").args(["-c", &format!("command -v {shell}")]).output().unwrap().stdout;
    std::os::unix::fs::symlink(String::from_utf8(shell).unwrap().trim(), bin.join("sh")).unwrap();
    let agent = folder.join("agent");
    let exec = if joins { r#"exec sh -c "$*""# } else { r#"exec "$@""# };
    fs::write(&agent, format!("#!/bin/sh\nPATH={}:$PATH\nshift\n{exec}\n", bin.display())).unwrap();
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o755)).unwrap();
    agent.to_str().unwrap().to_owned()
}

fn program(words: &[&str], more: &[&str]) -> Value {
    json!(words.iter().chain(more).collect::<Vec<_>>())
}

#[test]
fn words_arrive_as_they_are_through_any_agent_and_shell() {
    for shell in ["dash", "bash"] {
        for joins in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let agent = agent(folder.path(), shell, joins);
            let print = r#"printf '<%s>' "$@"; printf '[%s]' "$A" "$IFS"; tr '\0' ' ' </proc/$PPID/cmdline"#;
            let ended = launch(json!({
                "hosts": [["here", 1, null]],
                "agent": [agent],
                "program": program(&["sh", "-c", print, "sh"], &ARGUMENTS),
                "env": { "A": ARGUMENTS.concat(), "IFS": "x", "gleaner_session": "1", "BIG": "x".repeat(100_000) },
                "rank_zero": true,
            }))
            .end();
            let arguments: String = ARGUMENTS.iter().map(|argument| format!("<{argument}>")).collect();
            // Shells do not take IFS from the environment.
            let expected = format!("{arguments}[{}][ \t\n]sh ", ARGUMENTS.concat());
            assert_eq!((ended.code, ended.out), (0, expected), "{shell}, joins: {joins}: {}", ended.err);
        }
    }
}

#[test]
fn arguments_need_not_be_text() {
    let ended = launch(json!({
        "workers": 1, "program": ["printf", "%s"], "raw_word": [0xff, 0x27, 0x0a, 0xfe], "rank_zero": true,
    }));
    assert_eq!(ended.end().raw, b"\xff'\n\xfe");
}

#[test]
fn any_shell_ends_its_worker() {
    for shell in ["dash", "bash"] {
        let folder = tempfile::tempdir().unwrap();
        let agent = agent(folder.path(), shell, true);
        let nap = nap();
        let job = |program: String| {
            let hosts = json!([["one", 1, null], ["two", 2, null]]);
            launch(json!({ "hosts": hosts, "agent": [&agent], "program": ["sh", "-c", program] }))
        };

        let ended = job(format!("[ $GLEANER_RANK = 2 ] && kill -s SEGV $$; sleep {nap} & sleep {nap}")).end();
        assert_eq!(ended.code, 139, "{shell}");
        assert_eq!(ended.err, "last: rank 2 failed: killed by signal 11 (SIGSEGV)\n", "{shell}");
        assert_eq!(sleepers(&nap), 0, "{shell}");

        let launched = job(format!("sleep {nap} & sleep {nap}"));
        eventually("six processes sleep", seconds(10), || sleepers(&nap) == 6);
        launched.signal("KILL");
        launched.end();
        eventually("all have ended", seconds(8), || sleepers(&nap) == 0);
    }
}

#[test]
fn an_agent_that_is_not_there_is_named() {
    let ended =
        launch(json!({ "hosts": [["a", 1, null]], "agent": ["/nowhere/ssh", "-x"], "program": ["true"] }))
            .end();
    assert_eq!(ended.code, 200);
    assert!(ended.err.contains("error: `/nowhere/ssh -x a sh` cannot be started"), "{}", ended.err);
}

/// Namespaces that live as long as their test.
struct Namespaces(Vec<String>);

impl Namespaces {
    /// None where this process may not make any.
    fn new(names: &[&str]) -> Option<Namespaces> {
        let mut made = Namespaces(Vec::new());
        for name in names {
            let name = format!("gleaner-launch-{}-{name}", std::process::id());
            let ip = Command::new("ip").args(["netns", "add", &name]).stderr(Stdio::null()).status();
            if !ip.is_ok_and(|status| status.success()) {
                gleaner_skips::skip("netns", "making network namespaces takes root and the command ip");
                return None;
            }
            made.0.push(name);
        }
        Some(made)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = Command::new("ip").args(["netns", "delete", name]).status();
        }
    }
}

#[test]
fn namespaces_are_hosts() {
    let Some(spaces) = Namespaces::new(&["a", "b"]) else { return };
    let (nap, folder) = (nap(), tempfile::tempdir().unwrap());
    // Rank 0 fails when the others have spoken.
    let program = format!(
        "echo at $(ip netns identify $$) $GLEANER_RENDEZVOUS; cd '{}'; : >$GLEANER_RANK
         [ $GLEANER_RANK = 0 ] && while ! [ -e 1 -a -e 2 ]; do sleep 0.02; done && exit 3; sleep {nap} & wait",
        folder.path().display()
    );
    let hosts = json!([[spaces.0[0], 1, "10.9.0.1"], [spaces.0[1], 2, null]]);
    let ended =
        launch(json!({ "hosts": hosts, "agent": ["ip", "netns", "exec"], "program": ["sh", "-c", program] }))
            .end();
    assert_eq!(ended.code, 3, "{}", ended.err);
    assert_eq!(sleepers(&nap), 0);
    for (rank, space) in [(0, 0), (1, 1), (2, 1)] {
        let lines = Ended::lines_of(&ended.out, rank);
        assert!(lines[0].starts_with(&format!("at {} 10.9.0.1:", spaces.0[space])), "{}", ended.out);
    }
}

#[test]
fn a_host_that_does_not_answer_is_named_and_no_rank_stays() {
    let Some(spaces) = Namespaces::new(&["c"]) else { return };
    let nap = nap();
    let hosts = json!([[spaces.0[0], 2, null], ["nowhere", 1, null]]);
    let job = json!({ "hosts": hosts, "agent": ["ip", "netns", "exec"], "program": ["sleep", nap] });
    let ended = launch(job).end();
    assert_eq!(ended.code, 200);
    let error = ended.err.lines().last().unwrap();
    for part in [
        "error: host nowhere does not answer: `ip netns exec nowhere sh` exited with code",
        "and said: Cannot open network namespace \"nowhere\"",
        "take the host out of the hostfile",
    ] {
        assert!(error.contains(part), "{error}");
    }
    assert!(ended.took < seconds(8), "{:?}", ended.took);
    assert_eq!(sleepers(&nap), 0);
}

/// A server of its own on a port of its own, with throwaway keys.
struct Sshd {
    child: Child,
    folder: tempfile::TempDir,
    port: u16,
}

impl Sshd {
    /// None where there is no server to start.
    fn new() -> Option<Sshd> {
        let path = ["/usr/sbin/sshd", "/usr/bin/sshd"].into_iter().find(|path| Path::new(path).exists());
        let user = Command::new("id").arg("-un").output().unwrap().stdout;
        let (Some(path), "root") = (path, String::from_utf8_lossy(&user).trim()) else {
            gleaner_skips::skip("sshd", "takes sshd (package openssh-server) and root");
            return None;
        };
        // The server insists on this directory, which its package makes at boot.
        fs::create_dir_all("/run/sshd").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name).display().to_string();
        for key in ["host", "user"] {
            let arguments = ["-q", "-t", "ed25519", "-N", "", "-f", &file(key)];
            assert!(Command::new("ssh-keygen").args(arguments).status().unwrap().success());
        }
        fs::rename(file("user.pub"), file("authorized")).unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let options = [
            format!("Port {port}"),
            "ListenAddress 127.0.0.1".into(),
            format!("HostKey {}", file("host")),
            format!("AuthorizedKeysFile {}", file("authorized")),
            "StrictModes no".into(),
            "PermitRootLogin yes".into(),
            "UsePAM no".into(),
            format!("PidFile {}", file("pid")),
        ];
        fs::write(file("config"), options.join("\n")).unwrap();
        let child = Command::new(path)
            .args(["-D", "-e", "-f", &file("config")])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Sshd { child, folder, port };
        eventually("the server listens", seconds(10), || {
            std::net::TcpStream::connect(("127.0.0.1", server.port)).is_ok()
        });
        Some(server)
    }

    fn agent(&self) -> Vec<String> {
        let options = format!(
            "ssh -F none -p {} -i {} -o BatchMode=yes -o StrictHostKeyChecking=no -o LogLevel=ERROR \
             -o UserKnownHostsFile=/dev/null",
            self.port,
            self.folder.path().join("user").display()
        );
        options.split_whitespace().map(str::to_owned).collect()
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn ssh_reaches_hosts_and_ends_their_workers() {
    let Some(server) = Sshd::new() else { return };
    let hosts = json!([["root@127.0.0.1", 1, null], ["localhost", 1, null]]);
    let job = |program: Value| json!({ "hosts": hosts, "agent": server.agent(), "program": program });

    let print = r#"echo "$GLEANER_RANK $GLEANER_RENDEZVOUS $A" && printf '<%s>' "$@""#;
    let mut first = job(program(&["sh", "-c", print, "sh"], &ARGUMENTS));
    first["env"] = json!({ "A": "it's \"$HOME\"" });
    first["rank_zero"] = json!(true);
    let ended = launch(first).end();
    let arguments: String = ARGUMENTS.iter().map(|argument| format!("<{argument}>")).collect();
    assert_eq!(ended.code, 0, "{}", ended.err);
    assert!(ended.out.starts_with("0 127.0.0.1:"), "{}", ended.out);
    assert!(ended.out.ends_with(&format!(" it's \"$HOME\"\n{arguments}")), "{}", ended.out);

    let nap = nap();
    let ended =
        launch(job(json!(["sh", "-c", format!("[ $GLEANER_RANK = 1 ] && exit 5; sleep {nap} & wait")])))
            .end();
    assert_eq!(ended.code, 5, "{}", ended.err);
    assert_eq!(ended.err, "last: rank 1 failed: exited with code 5\n");
    assert_eq!(sleepers(&nap), 0);

    let launched = launch(job(json!(["sh", "-c", format!("sleep {nap} & sleep {nap}")])));
    eventually("four processes sleep", seconds(10), || sleepers(&nap) == 4);
    launched.signal("KILL");
    launched.end();
    eventually("all have ended", seconds(8), || sleepers(&nap) == 0);
}

#[test]
fn an_ssh_server_that_is_not_there_is_named() {
    if Command::new("ssh").arg("-V").stderr(Stdio::null()).status().is_err() {
        gleaner_skips::skip("ssh", "takes ssh");
        return;
    }
    let agent = ["ssh", "-F", "none", "-o", "BatchMode=yes", "-p", "1"];
    let ended =
        launch(json!({ "hosts": [["127.0.0.1", 1, null]], "agent": agent, "program": ["true"] })).end();
    assert_eq!(ended.code, 200);
    assert!(ended.err.contains("error: host 127.0.0.1 does not answer"), "{}", ended.err);
    assert!(ended.err.contains("exited with code 255 and said: ssh: connect to host"), "{}", ended.err);
}
