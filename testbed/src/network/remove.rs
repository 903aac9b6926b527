//! Removing a network: exactly what its file names, and what still runs in it.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use gleaner_processes::{Process, end};

use super::{Network, NetworkError, commands, inside};

/// Removes it, whether it is whole or half-made; namespaces that others made under its names stay, and are an error.
pub(super) fn remove(network: &Network) -> Result<(), NetworkError> {
    let there = || network.namespaces.iter().filter(|namespace| inside::path(namespace).exists());
    let (ours, others): (Vec<&String>, Vec<&String>) =
        there().partition(|namespace| is_ours(network, namespace));
    end_processes(&ours)?;
    for namespace in &ours {
        commands::run(&["ip", "netns", "delete", namespace], None)?;
    }
    network.forget()?;
    if others.is_empty() {
        return Ok(());
    }
    Err(of_others(&others.into_iter().cloned().collect::<Vec<_>>()).into())
}

/// What is said of namespaces that another program has made.
pub(super) fn of_others(names: &[String]) -> String {
    let expected = "expected these names to be free: choose another --name, or remove them yourself with ip netns delete";
    let names = names.join(", ");
    format!("there are network namespaces called {names}, which no gleaner testbed made; {expected}")
}

/// Whether this process made the namespace that now has the name.
fn is_ours(network: &Network, namespace: &String) -> bool {
    let unfinished = !network.complete && network.namespaces.last() == Some(namespace);
    let loopback = commands::interfaces(&["ip", "-json", "-n", namespace, "link", "show", "dev", "lo"]);
    unfinished || loopback.is_ok_and(|shown| shown.iter().any(|lo| lo["ifalias"] == network.token))
}

/// Asks all processes in these namespaces to end, and kills those that do not: a namespace lives as long as they do.
fn end_processes(namespaces: &[&String]) -> Result<(), String> {
    let identity = |path: &Path| fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
    let ours: HashSet<_> = namespaces.iter().filter_map(|name| identity(&inside::path(name))).collect();
    // Run from one of the hosts, this must not end itself before it is done.
    let own = identity(Path::new("/proc/self/ns/net"));
    let is_in = |process: &Process| {
        identity(&process.file("ns/net")).is_some_and(|at| ours.contains(&at) && Some(at) != own)
    };
    match end(|| gleaner_processes::all().filter(is_in).collect()) {
        None => Ok(()),
        Some(process) => Err(format!(
            "process {} runs in one of the namespaces and does not end even when killed; look at it, then try again",
            process.id().as_raw_nonzero()
        )),
    }
}
