//! Links that differ: what OSP exchanges in the background is what the slowest of them carries during a pass.

use serde_json::Value;
use tempfile::NamedTempFile;

use crate::{Network, text};

/// U_max as a share of the model, of a job on four hosts of which the one of this name has another link.
fn bound(network: &Network, slow: Option<&str>, servers: &str) -> f64 {
    let other = slow.map_or(String::new(), |host| {
        format!("[host.{host}]\nup = {{ bandwidth = \"50mbit\" }}\ndown = {{ bandwidth = \"50mbit\" }}\n")
    });
    let topology = NamedTempFile::new().unwrap();
    let group = "[[group]]\nname = \"h\"\nhosts = 4\nlink = { bandwidth = \"500mbit\" }\n";
    std::fs::write(topology.path(), format!("{group}{other}")).unwrap();
    let up = network.run("up", &["--replace", "--topology", topology.path().to_str().unwrap()]);
    assert!(up.status.success(), "{}", text(&up.stderr));
    let hosts = NamedTempFile::new().unwrap();
    std::fs::write(hosts.path(), &up.stdout).unwrap();
    let mut launch = std::process::Command::new(env!("CARGO_BIN_EXE_gleaner"));
    launch.args(["launch", "--agent", "ip netns exec", "--servers", servers, "--hostfile"]).arg(hosts.path());
    launch.args(["--", env!("CARGO_BIN_EXE_gleaner"), "train", "--json"]);
    let words = "--data synthetic --model mlp --method ring --synchrony osp/budget=bound --pace 240ms --batch 8 --steps 5";
    let output = launch.args(words.split(' ')).output().unwrap();
    let said = text(&output.stdout);
    let line = said.lines().find_map(|line| line.find('{').map(|at| &line[at..]));
    let line = line.unwrap_or_else(|| panic!("no summary: {said}{}", text(&output.stderr)));
    let summary: Value = serde_json::from_str(line).unwrap();
    summary["background_bound"].as_f64().unwrap_or_else(|| panic!("no bound: {summary}"))
}

/// 3.3 MB in 240 ms, which a busy machine lengthens little: over a ring of links of 500 Mbit/s all of it, up to the cap; over one of 50 Mbit/s about a quarter. Of three workers at a server
/// that has to take and give it three times, about six tenths; by the link of the slow worker, a fifth.
#[test]
fn the_slowest_link_bounds_the_background() {
    let Some(network) = Network::named("unequal") else { return };
    let ring = [None, Some("h2")].map(|slow| bound(&network, slow, "0"));
    assert!(ring[0] > 0.5 && ring[1] < 0.4 && ring[1] > 0.05, "{ring:?}");
    let served = [None, Some("h2"), Some("h3")].map(|slow| bound(&network, slow, "1"));
    assert!(served[0] > 0.35 && served[1] < 0.3 && served[1] > 0.05, "{served:?}");
    // The server's own link is the slow one.
    assert!(served[2] < 0.15, "{served:?}");
}
