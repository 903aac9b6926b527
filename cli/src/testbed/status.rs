//! `gleaner testbed status`.

use std::io::{self, Write};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use gleaner_testbed::network::{Counters, Crossed, Network, NetworkError, Node, Uplink};
use gleaner_testbed::topology;
use serde::Serialize;
use serde_json::json;

use crate::report::CommandError;

/// Traffic is counted over so long.
const WHILE: Duration = Duration::from_secs(1);

/// Show the emulated hosts and what crosses their links
///
/// For every host its link as asked for, and what its interface receives and sends, measured over a second; the same for
/// the uplink of every group that has one. Needs root.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    gleaner testbed status\n  \
    gleaner testbed status --name slow --watch\n  \
    gleaner testbed status --json")]
pub struct Status {
    /// Which network [default: all]
    #[arg(long, value_parser = topology::name)]
    name: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Go on until Ctrl-C, with a new picture (or with --json a line) every second
    #[arg(long)]
    watch: bool,
}

/// A network as it is now; without hosts and uplinks if it is half-made.
#[derive(Serialize)]
struct Picture {
    name: String,
    complete: bool,
    hosts: Option<Vec<Linked<Node>>>,
    uplinks: Option<Vec<Linked<Uplink>>>,
    relay: Relay,
}

/// The link of a host or of a group, and what crosses it now, in bytes a second.
#[derive(Serialize)]
struct Linked<T> {
    #[serde(flatten)]
    end: T,
    /// Of a host.
    #[serde(skip_serializing_if = "Option::is_none")]
    cut: Option<bool>,
    #[serde(rename = "received_bytes_per_second")]
    received: f64,
    #[serde(rename = "sent_bytes_per_second")]
    sent: f64,
}

/// What carries packets over links.
#[derive(Serialize)]
#[serde(untagged)]
enum Relay {
    /// The kernel.
    None,
    /// A process that has carried so much so far.
    Carries(Crossed),
    /// One that is gone.
    Dead { error: String },
}

pub fn run(status: &Status) -> Result<ExitCode, CommandError> {
    loop {
        let pictures = look(status.name.as_deref())?;
        let text = if status.json {
            format!("{}\n", json!({ "networks": pictures }))
        } else {
            // Clears the screen, from the upper left corner on.
            let clear = if status.watch { "\x1b[H\x1b[J" } else { "" };
            let tables: Vec<String> = pictures.iter().map(Picture::table).collect();
            match tables[..] {
                [] => format!("{clear}there is no emulated network; make one with gleaner testbed up\n"),
                _ => format!("{clear}{}", tables.join("\n")),
            }
        };
        // A reader that has seen enough, such as `head`, is no error, and ends the watch.
        let mut out = io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
            Err(error) => return Err(format!("the status cannot be printed: {error}").into()),
            Ok(()) if !status.watch => return Ok(ExitCode::SUCCESS),
            Ok(()) => {}
        }
    }
}

/// Looks at one network or all of them, over a second.
fn look(only: Option<&str>) -> Result<Vec<Picture>, NetworkError> {
    let names = match only {
        Some(name) => vec![name.to_owned()],
        None => Network::names()?,
    };
    let mut networks = Vec::new();
    for name in names {
        match Network::find(&name) {
            Ok(network) => {
                let before = samples(&network)?;
                networks.push((name, Some((network, before))));
            }
            Err(NetworkError::Half(..)) => networks.push((name, None)),
            // It was removed since its name was read.
            Err(NetworkError::None { .. }) if only.is_none() => {}
            Err(error) => return Err(error),
        }
    }
    thread::sleep(WHILE);
    networks.into_iter().map(|(name, found)| Picture::of(name, found)).collect()
}

/// What an interface had counted when.
type CountedAt = (Instant, Counters);

/// Of the hosts, and of the uplinks.
type Samples = (Vec<CountedAt>, Vec<CountedAt>);

fn samples(network: &Network) -> Result<Samples, NetworkError> {
    let now = |counted| (Instant::now(), counted);
    let host = |node: Node| network.counters(&node.name).map(now);
    let uplink = |uplink: Uplink| network.uplink_counters(&uplink).map(now);
    let hosts = network.hosts().into_iter().map(host).collect::<Result<_, _>>()?;
    Ok((hosts, network.uplinks().into_iter().map(uplink).collect::<Result<_, _>>()?))
}

impl<T> Linked<T> {
    fn new(end: T, cut: Option<bool>, ((then, old), (now, new)): (&CountedAt, &CountedAt)) -> Self {
        let rate = |old: u64, new: u64| new.saturating_sub(old) as f64 / (*now - *then).as_secs_f64();
        Self { end, cut, received: rate(old.received, new.received), sent: rate(old.sent, new.sent) }
    }
}

impl Picture {
    fn of(name: String, found: Option<(Network, Samples)>) -> Result<Self, NetworkError> {
        let Some((network, before)) = found else {
            return Ok(Self { name, complete: false, hosts: None, uplinks: None, relay: Relay::None });
        };
        let (now, cut) = (samples(&network)?, network.cut_hosts()?);
        let hosts = network.hosts().into_iter().zip(before.0.iter().zip(&now.0)).map(|(node, counted)| {
            let is_cut = cut.contains(&node.name);
            Linked::new(node, Some(is_cut), counted)
        });
        let uplinks = network.uplinks().into_iter().zip(before.1.iter().zip(&now.1));
        Ok(Self {
            name,
            complete: true,
            hosts: Some(hosts.collect()),
            uplinks: Some(uplinks.map(|(uplink, counted)| Linked::new(uplink, None, counted)).collect()),
            relay: match network.crossed() {
                Ok(None) => Relay::None,
                Ok(Some(all)) => Relay::Carries(all),
                Err(error) => Relay::Dead { error },
            },
        })
    }

    fn table(&self) -> String {
        let Self { name, relay, .. } = self;
        let (Some(hosts), Some(uplinks)) = (&self.hosts, &self.uplinks) else {
            return format!("network {name}: half-made; remove it with gleaner testbed down --name {name}\n");
        };
        let namespaces = hosts.iter().map(|host| host.end.namespace.len());
        let groups = uplinks.iter().map(|uplink| uplink.end.group.len());
        let widest = namespaces.chain(groups).max().unwrap_or(0).max("namespace".len());
        let line = |name: &str, address: &str, received: &str, sent: &str, link: &str| {
            format!("{name:widest$}  {address:15}  {received:>13}  {sent:>13}  {link}\n")
        };
        let mut text =
            format!("network {name}\n") + &line("namespace", "address", "receives", "sends", "link");
        for Linked { end: node, cut, received, sent } in hosts {
            let link = if *cut == Some(true) { "cut".into() } else { node.link.to_string() };
            text += &line(&node.namespace, &node.address.to_string(), &mbit(*received), &mbit(*sent), &link);
        }
        if !uplinks.is_empty() {
            text += &line("group", "", "receives", "sends", "uplink");
        }
        for Linked { end: uplink, received, sent, .. } in uplinks {
            text += &line(&uplink.group, "", &mbit(*received), &mbit(*sent), &uplink.link.to_string());
        }
        text += &match relay {
            Relay::None => String::new(),
            Relay::Carries(Crossed { carried, lost, dropped, late }) => format!(
                "a relay carries all packets: {carried} frames so far, {late} of them late; {lost} lost, {dropped} before full links\n"
            ),
            Relay::Dead { error } => format!("{error}\n"),
        };
        text
    }
}

fn mbit(bytes_per_second: f64) -> String {
    format!("{:.1} Mbit/s", 8e-6 * bytes_per_second)
}
