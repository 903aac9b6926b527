//! `gleaner testbed status`.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use gleaner_testbed::network::{Counters, Network, NetworkError, Node};
use serde_json::{Value, json};

/// Traffic is counted over so long.
const WHILE: Duration = Duration::from_secs(1);

/// Show the emulated hosts and what crosses their links
///
/// For every host its link as asked for, and what its interface receives and sends, measured over a second. Needs root.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    gleaner testbed status\n  \
    gleaner testbed status --name slow --watch\n  \
    gleaner testbed status --json")]
pub struct Status {
    /// Which network; all of them if not said
    #[arg(long)]
    name: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Go on until Ctrl-C, with a new picture (or with --json a line) every second
    #[arg(long)]
    watch: bool,
}

/// A host and what crosses its link now.
struct Row {
    node: Node,
    cut: bool,
    received: f64,
    sent: f64,
}

/// Runs it.
pub fn run(status: &Status) -> Result<ExitCode, String> {
    loop {
        let pictures = look(status).map_err(|error| error.to_string())?;
        if status.json {
            let networks: Vec<Value> = pictures.iter().map(|(name, rows)| object(name, rows)).collect();
            println!("{}", json!({ "networks": networks }));
        } else {
            // Clears the screen, from the upper left corner on.
            let clear = if status.watch { "\x1b[H\x1b[J" } else { "" };
            let text: Vec<String> =
                pictures.iter().map(|(name, rows)| table(name, rows.as_deref())).collect();
            match text[..] {
                [] => println!("{clear}there is no emulated network; make one with gleaner testbed up"),
                _ => print!("{clear}{}", text.join("\n")),
            }
        }
        if !status.watch {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// All networks, with their hosts; none for one that is half-made.
fn look(status: &Status) -> Result<Vec<(String, Option<Vec<Row>>)>, NetworkError> {
    let names = match &status.name {
        Some(name) => vec![name.clone()],
        None => Network::names()?,
    };
    let mut networks = Vec::new();
    for name in names {
        match Network::find(&name) {
            Ok(network) => networks.push((name, Some(network))),
            Err(NetworkError::Half { .. }) => networks.push((name, None)),
            // It was removed since its name was read.
            Err(NetworkError::None { .. }) if status.name.is_none() => {}
            Err(error) => return Err(error),
        }
    }
    let counted = |network: &Network| -> Result<Vec<(Instant, Counters)>, NetworkError> {
        let now = |node: Node| Ok((Instant::now(), network.counters(&node.name)?));
        network.hosts().into_iter().map(now).collect()
    };
    let all = || -> Result<Vec<_>, NetworkError> {
        networks.iter().map(|(_, network)| network.as_ref().map(counted).transpose()).collect()
    };
    let before = all()?;
    thread::sleep(WHILE);
    let after = all()?;
    let rows = |network: &Network, before: Vec<(Instant, Counters)>, after: Vec<(Instant, Counters)>| {
        let pairs = network.hosts().into_iter().zip(before.into_iter().zip(after));
        let row = |(node, ((then, old), (now, new))): (Node, ((Instant, Counters), (Instant, Counters)))| {
            let seconds = (now - then).as_secs_f64();
            let rate = |old: u64, new: u64| new.saturating_sub(old) as f64 / seconds;
            let cut = network.is_cut(&node.name)?;
            Ok(Row { node, cut, received: rate(old.received, new.received), sent: rate(old.sent, new.sent) })
        };
        pairs.map(row).collect::<Result<Vec<Row>, NetworkError>>()
    };
    let pairs = networks.iter().zip(before.into_iter().zip(after));
    let pictures = pairs.map(|((name, network), (before, after))| {
        let rows = match (network, before, after) {
            (Some(network), Some(before), Some(after)) => Some(rows(network, before, after)?),
            _ => None,
        };
        Ok((name.clone(), rows))
    });
    pictures.collect()
}

fn object(name: &str, rows: &Option<Vec<Row>>) -> Value {
    let host = |row: &Row| {
        json!({
            "name": row.node.name, "group": row.node.group, "namespace": row.node.namespace,
            "address": row.node.address, "link": row.node.link, "cut": row.cut,
            "received_bytes_per_second": row.received, "sent_bytes_per_second": row.sent,
        })
    };
    let hosts: Option<Vec<Value>> = rows.as_ref().map(|rows| rows.iter().map(host).collect());
    json!({ "name": name, "complete": rows.is_some(), "hosts": hosts })
}

fn table(name: &str, rows: Option<&[Row]>) -> String {
    let Some(rows) = rows else {
        return format!("network {name}: half-made; remove it with gleaner testbed down --name {name}\n");
    };
    let mut text = format!("network {name}\n");
    let widest = rows.iter().map(|row| row.node.namespace.len()).max().unwrap_or(0).max(9);
    text +=
        &format!("{:widest$}  {:15}  {:>13}  {:>13}  link\n", "namespace", "address", "receives", "sends");
    for row in rows {
        let (received, sent) = (mbit(row.received), mbit(row.sent));
        let link = if row.cut { "cut".to_owned() } else { row.node.link.to_string() };
        let address = row.node.address.to_string();
        text +=
            &format!("{:widest$}  {address:15}  {received:>13}  {sent:>13}  {link}\n", row.node.namespace);
    }
    text
}

fn mbit(bytes_per_second: f64) -> String {
    format!("{:.1} Mbit/s", 8e-6 * bytes_per_second)
}
