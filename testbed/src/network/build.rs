//! Making a network: a namespace for the switches and one for each host.

use std::fs::File;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::relay::{self, Ask};
use super::{
    INTERFACE, Kernel, Network, NetworkError, Node, Prepared, Uplink, commands, inside, nodes, shape, uplinks,
};
use crate::topology::{Link, Topology};

/// So many hosts at once try to reach the first.
const AT_ONCE: usize = 64;

/// How long the first may take to answer: longer than the second after which TCP asks again.
const PATIENCE: Duration = Duration::from_secs(2);

/// Makes what is asked for, and writes down every namespace before it makes it.
pub(super) fn build(network: &mut Network, kernel: &Kernel, lock: &File) -> Result<(), NetworkError> {
    let nodes = nodes(&network.name, &network.topology);
    let namespaces = nodes.iter().map(|node| node.namespace.clone());
    for namespace in [network.name.clone()].into_iter().chain(namespaces) {
        namespace_of_ours(network, namespace, lock)?;
    }
    commands::batch("ip", &network.name, &switches(&network.topology, network.is_relayed))?;
    for node in &nodes {
        if network.is_relayed {
            commands::batch("ip", &node.namespace, &held(INTERFACE))?;
        }
        commands::batch("ip", &network.name, &cable(node, network.is_relayed))?;
        commands::batch("ip", &node.namespace, &addresses(node, &network.topology))?;
    }
    if network.is_relayed {
        relay::start(&network.name)?;
    }
    // Before they are slow or lose packets.
    all_reach_the_first(&nodes)?;
    for (number, node) in nodes.iter().enumerate() {
        prepare(network, number, node, kernel)?.go()?;
    }
    for (number, Uplink { link, port, core_port, .. }) in (nodes.len()..).zip(uplinks(&network.topology)) {
        if network.is_relayed {
            Ask::Change { number, link }.prepare(&network.name)?.ask::<()>()?;
            continue;
        }
        for (port, shape) in [(port, link.up), (core_port, link.down)] {
            commands::batch("tc", &network.name, &shaped(&port, shape::discipline(&shape, kernel)))?;
        }
    }
    network.complete = true;
    Ok(network.write()?)
}

/// Makes a namespace that has the token.
fn namespace_of_ours(network: &mut Network, namespace: String, lock: &File) -> Result<(), NetworkError> {
    network.namespaces.push(namespace.clone());
    network.write()?;
    // With the lock as its input, which no other process gets while this runs, not even if this process is killed now.
    if let Err(error) = commands::run(&["ip", "netns", "add", &namespace], Some(lock)) {
        // Another process made it since we looked: then it is not ours.
        network.namespaces.pop();
        network.write()?;
        return Err(error);
    }
    let lines = [format!("link set dev lo alias \"{}\"", network.token), "link set dev lo up".into()];
    commands::batch("ip", &namespace, &lines)
}

/// The bridges, and the cables between them.
fn switches(topology: &Topology, is_relayed: bool) -> Vec<String> {
    let mut lines = bridge("core");
    for Uplink { port: uplink, switch, core_port, .. } in uplinks(topology) {
        lines.extend(bridge(&switch));
        if is_relayed {
            lines.extend(held(&uplink).into_iter().chain(held(&core_port)));
        } else {
            lines.push(format!("link add name {uplink} type veth peer name {core_port}"));
        }
        lines.extend(port(&uplink, &switch).into_iter().chain(port(&core_port, "core")));
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
    network: &Network,
    number: usize,
    node: &Node,
    kernel: &Kernel,
) -> Result<Prepared, NetworkError> {
    let switches = network.name.as_str();
    let at_once = format!("link set dev {INTERFACE} gso_max_size {}", shape::at_once(&node.link.up));
    if network.is_relayed {
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
