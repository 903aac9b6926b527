//! Making a network: a namespace for the switches and one for each host.

use std::fs::File;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::state::State;
use super::{INTERFACE, Kernel, NetworkError, Node, Prepared, commands, inside, nodes, shape, uplink_port};
use crate::topology::{Link, Topology};

/// So many hosts at once try to reach the first.
const AT_ONCE: usize = 64;

/// How long the first may take to answer: longer than the second after which TCP asks again.
const PATIENCE: Duration = Duration::from_secs(2);

/// Makes what the state asks for, and writes down every namespace before it makes it.
pub(super) fn build(state: &mut State, kernel: &Kernel, lock: &File) -> Result<(), NetworkError> {
    let nodes = nodes(&state.name, &state.topology);
    let namespaces = nodes.iter().map(|node| node.namespace.clone());
    for namespace in [state.name.clone()].into_iter().chain(namespaces) {
        namespace_of_ours(state, namespace, lock)?;
    }
    commands::batch("ip", &state.name, &switches(&state.topology))?;
    for node in &nodes {
        commands::batch("ip", &state.name, &cable(node))?;
        commands::batch("ip", &node.namespace, &addresses(node, &state.topology))?;
    }
    // Before they are slow or lose packets.
    all_reach_the_first(&nodes)?;
    for node in &nodes {
        apply(&state.name, node, kernel)?;
    }
    commands::batch("tc", &state.name, &uplinks(&state.topology, kernel))?;
    state.complete = true;
    state.write()
}

/// Makes a namespace that bears the token.
fn namespace_of_ours(state: &mut State, namespace: String, lock: &File) -> Result<(), NetworkError> {
    state.namespaces.push(namespace.clone());
    state.write()?;
    // With the lock as its input, which nobody gets while this runs, not even if this process is killed now.
    if let Err(error) = commands::run(&["ip", "netns", "add", &namespace], Some(lock)) {
        // Somebody else made it since we looked: then it is not ours.
        state.namespaces.pop();
        state.write()?;
        return Err(error);
    }
    let lines = [format!("link set dev lo alias \"{}\"", state.token), "link set dev lo up".into()];
    commands::batch("ip", &namespace, &lines)
}

/// The bridges, and the cables between them.
fn switches(topology: &Topology) -> Vec<String> {
    let mut lines = bridge("core");
    for (i, _) in topology.groups.iter().enumerate().filter(|(_, group)| group.uplink.is_some()) {
        lines.extend(bridge(&format!("switch{i}")));
        let uplink = uplink_port(i);
        lines.push(format!("link add name {uplink} type veth peer name downlink{i}"));
        lines.extend(port(&uplink, &format!("switch{i}")));
        lines.extend(port(&format!("downlink{i}"), "core"));
    }
    lines
}

fn bridge(name: &str) -> Vec<String> {
    let mut lines = vec![format!("link add name {name} type bridge")];
    lines.extend(quiet(name));
    lines.push(format!("link set dev {name} up"));
    lines
}

fn port(name: &str, bridge: &str) -> Vec<String> {
    let mut lines = quiet(name);
    lines.push(format!("link set dev {name} master {bridge} up"));
    lines
}

/// Without IPv6 addresses, whose announcements would count as traffic.
fn quiet(interface: &str) -> Vec<String> {
    let has_ipv6 = Path::new("/proc/sys/net/ipv6").exists();
    has_ipv6.then(|| format!("link set dev {interface} addrgenmode none")).into_iter().collect()
}

fn cable(node: &Node) -> Vec<String> {
    let Node { port: name, namespace, switch, .. } = node;
    let mut lines = vec![format!("link add name {name} type veth peer name {INTERFACE} netns {namespace}")];
    lines.extend(port(name, switch));
    lines
}

fn addresses(node: &Node, topology: &Topology) -> Vec<String> {
    let mut lines = quiet(INTERFACE);
    lines.push(format!("address add {}/{} dev {INTERFACE}", node.address, topology.subnet.prefix()));
    lines.push(format!("link set dev {INTERFACE} up"));
    lines
}

/// Shapes a host's link in both directions.
fn apply(switches: &str, node: &Node, kernel: &Kernel) -> Result<(), NetworkError> {
    prepare(switches, node, kernel)?.go()
}

/// Starts what shapes a host's link in both directions.
pub(super) fn prepare(switches: &str, node: &Node, kernel: &Kernel) -> Result<Prepared, NetworkError> {
    // Packets are lost one by one: TCP must not hand over many as one.
    let whole = node.link.directions().iter().any(|shape| shape.loss.share() > 0.0);
    let segments = if whole { 1 } else { 65_535 };
    let alone = |interface: &str| format!("link set dev {interface} gso_max_segs {segments}");
    let Link { up, down } = &node.link;
    let at_once = format!("link set dev {INTERFACE} gso_max_size {}", shape::at_once(up));
    Prepared::start([
        ("ip", &*node.namespace, vec![alone(INTERFACE), at_once]),
        ("ip", switches, vec![alone(&node.port)]),
        ("tc", &node.namespace, shaped(INTERFACE, shape::discipline(up, kernel))),
        ("tc", switches, shaped(&node.port, shape::discipline(down, kernel))),
    ])
}

/// Shapes the links between switches.
fn uplinks(topology: &Topology, kernel: &Kernel) -> Vec<String> {
    let mut lines = Vec::new();
    for (i, group) in topology.groups.iter().enumerate() {
        let Some(Link { up, down }) = &group.uplink else { continue };
        lines.extend(shaped(&uplink_port(i), shape::discipline(up, kernel)));
        lines.extend(shaped(&format!("downlink{i}"), shape::discipline(down, kernel)));
    }
    lines
}

/// Out with the present discipline, and in with a new one: a bucket that is only changed keeps its queue, and never lets a packet
/// through that is longer than its new burst.
fn shaped(interface: &str, discipline: Option<String>) -> Vec<String> {
    let replace = |by: &str| format!("qdisc replace dev {interface} root {by}");
    std::iter::once(replace("noqueue")).chain(discipline.as_deref().map(replace)).collect()
}

/// Every host must reach the first.
fn all_reach_the_first(nodes: &[Node]) -> Result<(), NetworkError> {
    let Some((first, others)) = nodes.split_first() else { return Ok(()) };
    for some in others.chunks(AT_ONCE) {
        let reached: Vec<_> = thread::scope(|scope| {
            let reaches = |node: &Node| inside::reaches(&node.namespace, first.address, PATIENCE);
            let threads: Vec<_> = some.iter().map(|node| scope.spawn(move || reaches(node))).collect();
            threads.into_iter().map(|thread| thread.join()).collect()
        });
        for (node, reached) in some.iter().zip(reached) {
            if !reached.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked))? {
                return Err(NetworkError::Unreachable {
                    host: node.name.clone(),
                    namespace: node.namespace.clone(),
                    first: first.name.clone(),
                });
            }
        }
    }
    Ok(())
}
