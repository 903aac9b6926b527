//! Making a network: a namespace for the switches and one for each host.

use std::fs::File;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::relay::{self, Ask};
use super::state::State;
use super::{
    INTERFACE, Kernel, NetworkError, Node, Prepared, commands, downlink_port, inside, nodes, shape,
    uplink_port,
};
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
    commands::batch("ip", &state.name, &switches(&state.topology, state.is_relayed))?;
    for node in &nodes {
        if state.is_relayed {
            commands::batch("ip", &node.namespace, &held(INTERFACE))?;
        }
        commands::batch("ip", &state.name, &cable(node, state.is_relayed))?;
        commands::batch("ip", &node.namespace, &addresses(node, &state.topology))?;
    }
    if state.is_relayed {
        relay::start(&state.name)?;
    }
    // Before they are slow or lose packets.
    all_reach_the_first(&nodes)?;
    for (number, node) in nodes.iter().enumerate() {
        prepare(state, number, node, kernel)?.go()?;
    }
    if state.is_relayed {
        let uplinks = state.topology.groups.iter().filter_map(|group| group.uplink);
        for (number, link) in (nodes.len()..).zip(uplinks) {
            Ask::Change { number, link }.prepare(&state.name)?.ask::<()>()?;
        }
    } else {
        commands::batch("tc", &state.name, &uplinks(&state.topology, kernel))?;
    }
    state.complete = true;
    Ok(state.write()?)
}

/// Makes a namespace that bears the token.
fn namespace_of_ours(state: &mut State, namespace: String, lock: &File) -> Result<(), NetworkError> {
    state.namespaces.push(namespace.clone());
    state.write()?;
    // With the lock as its input, which no other process gets while this runs, not even if this process is killed now.
    if let Err(error) = commands::run(&["ip", "netns", "add", &namespace], Some(lock)) {
        // Another process made it since we looked: then it is not ours.
        state.namespaces.pop();
        state.write()?;
        return Err(error);
    }
    let lines = [format!("link set dev lo alias \"{}\"", state.token), "link set dev lo up".into()];
    commands::batch("ip", &namespace, &lines)
}

/// The bridges, and the cables between them.
fn switches(topology: &Topology, is_relayed: bool) -> Vec<String> {
    let mut lines = bridge("core");
    for (i, _) in topology.groups.iter().enumerate().filter(|(_, group)| group.uplink.is_some()) {
        lines.extend(bridge(&format!("switch{i}")));
        let (uplink, downlink) = (uplink_port(i), downlink_port(i));
        if is_relayed {
            lines.extend(held(&uplink).into_iter().chain(held(&downlink)));
        } else {
            lines.push(format!("link add name {uplink} type veth peer name {downlink}"));
        }
        lines.extend(port(&uplink, &format!("switch{i}")));
        lines.extend(port(&downlink, "core"));
    }
    lines
}

fn bridge(name: &str) -> Vec<String> {
    [vec![format!("link add name {name} type bridge")], quiet(name), vec![format!("link set dev {name} up")]]
        .concat()
}

fn port(name: &str, bridge: &str) -> Vec<String> {
    [quiet(name), vec![format!("link set dev {name} master {bridge} up")]].concat()
}

/// Without IPv6 addresses, whose announcements would count as traffic.
fn quiet(interface: &str) -> Vec<String> {
    let has_ipv6 = Path::new("/proc/sys/net/ipv6").exists();
    has_ipv6.then(|| format!("link set dev {interface} addrgenmode none")).into_iter().collect()
}

/// An interface that the relay will hold. Its queue outlasts a while in which the relay has no processor.
fn held(interface: &str) -> Vec<String> {
    vec![
        format!("tuntap add dev {interface} mode tap vnet_hdr"),
        format!("link set dev {interface} txqueuelen 10000"),
    ]
}

fn cable(node: &Node, is_relayed: bool) -> Vec<String> {
    let Node { port: name, namespace, switch, .. } = node;
    let made = match is_relayed {
        true => held(name),
        false => vec![format!("link add name {name} type veth peer name {INTERFACE} netns {namespace}")],
    };
    [made, port(name, switch)].concat()
}

fn addresses(node: &Node, topology: &Topology) -> Vec<String> {
    let mut lines = quiet(INTERFACE);
    lines.push(format!("address add {}/{} dev {INTERFACE}", node.address, topology.subnet.prefix()));
    lines.push(format!("link set dev {INTERFACE} up"));
    lines
}

/// Starts what shapes a host's link in both directions; the link has that number among all.
pub(super) fn prepare(
    state: &State,
    number: usize,
    node: &Node,
    kernel: &Kernel,
) -> Result<Prepared, NetworkError> {
    let switches = state.name.as_str();
    let at_once = format!("link set dev {INTERFACE} gso_max_size {}", shape::at_once(&node.link.up));
    if state.is_relayed {
        let change = Ask::Change { number, link: node.link }.prepare(switches)?;
        return Prepared::start([("ip", &*node.namespace, vec![at_once])], Some(change));
    }
    // Packets are lost one by one: TCP must not hand over many as one.
    let whole = node.link.directions().iter().any(|shape| shape.loss.share() > 0.0);
    let segments = if whole { 1 } else { 65_535 };
    let alone = |interface: &str| format!("link set dev {interface} gso_max_segs {segments}");
    let Link { up, down } = &node.link;
    let programs = [
        ("ip", &*node.namespace, vec![alone(INTERFACE), at_once]),
        ("ip", switches, vec![alone(&node.port)]),
        ("tc", &*node.namespace, shaped(INTERFACE, shape::discipline(up, kernel))),
        ("tc", switches, shaped(&node.port, shape::discipline(down, kernel))),
    ];
    Prepared::start(programs, None)
}

fn uplinks(topology: &Topology, kernel: &Kernel) -> Vec<String> {
    let mut lines = Vec::new();
    for (i, group) in topology.groups.iter().enumerate() {
        let Some(Link { up, down }) = &group.uplink else { continue };
        lines.extend(shaped(&uplink_port(i), shape::discipline(up, kernel)));
        lines.extend(shaped(&downlink_port(i), shape::discipline(down, kernel)));
    }
    lines
}

/// Out with the present discipline, and in with a new one: a bucket that is only changed keeps its queue, and never lets a packet
/// through that is longer than its new burst.
fn shaped(interface: &str, discipline: Option<String>) -> Vec<String> {
    let replace = |by: &str| format!("qdisc replace dev {interface} root {by}");
    std::iter::once(replace("noqueue")).chain(discipline.as_deref().map(replace)).collect()
}

fn all_reach_the_first(nodes: &[Node]) -> Result<(), String> {
    let Some((first, others)) = nodes.split_first() else { return Ok(()) };
    for some in others.chunks(AT_ONCE) {
        let reached: Vec<_> = thread::scope(|scope| {
            let reaches = |node: &Node| inside::reaches(&node.namespace, first.address, PATIENCE);
            let threads: Vec<_> = some.iter().map(|node| scope.spawn(move || reaches(node))).collect();
            threads.into_iter().map(|thread| thread.join()).collect()
        });
        for (node, reached) in some.iter().zip(reached) {
            if !reached.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked))? {
                let Node { name, namespace, .. } = node;
                let advice =
                    format!("look at ip -n {namespace} address, and at what filters packets on bridges here");
                return Err(format!("{name} does not reach {}; {advice} (nft list ruleset)", first.name));
            }
        }
    }
    Ok(())
}
