//! `gleaner testbed up`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Args;
use gleaner_runtime::report::say;
use gleaner_testbed::experiment::Interrupt;
use gleaner_testbed::network::{Changes, NAME, Network, NetworkError};
use gleaner_testbed::topology::{self, Link, Loss, Shape, Subnet, Topology};
use gleaner_units::{self as units, Rate};
use serde_json::json;

use crate::report::{CommandError, json, refused};

/// Make an emulated network of hosts on this machine
///
/// Every host is a network namespace with an address of its own, joined to the others by bridges; every link is limited in
/// both directions. Prints a hostfile for `gleaner launch --agent 'ip netns exec'`. Needs root.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    gleaner testbed up --hosts 6 --bandwidth 1gbit > hosts\n  \
    gleaner testbed up --hosts 4 --bandwidth 100mbit --link-latency 5ms --jitter 1ms --loss 0.1% --name slow > hosts\n  \
    gleaner testbed up --topology racks.toml --replace --json\n  \
    gleaner launch --hostfile hosts --agent 'ip netns exec' -- gleaner bench --params 1_000_000\n  \
    gleaner testbed down")]
pub struct Up {
    /// Number of hosts on one switch, called host0, host1, …
    #[arg(long, value_name = "HOSTS", value_parser = units::count, required_unless_present = "topology")]
    hosts: Option<usize>,
    /// Bandwidth of every link in each direction [default: unlimited]
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    bandwidth: Option<Rate>,
    /// What each link adds in each direction. A message crosses two links, and a round trip takes four times this
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    link_latency: Option<Duration>,
    /// By how much the latency of a link varies, up and down
    #[arg(long, value_name = "TIME", value_parser = units::duration, requires = "link_latency")]
    jitter: Option<Duration>,
    /// Of a link: the share of packets that each loses in each direction, such as 0.1% or 0.001. A path has two links
    #[arg(long, value_name = "SHARE")]
    loss: Option<Loss>,
    /// TCP's congestion control on the hosts, such as cubic or bbr [default: the machine's]
    #[arg(long, value_name = "CONTROL")]
    congestion: Option<String>,
    /// Have a relay carry all packets, as where the kernel has no netem: which are lost follows from the seed
    #[arg(long)]
    relay: bool,
    /// Random seed of packet losses, where a relay carries the packets
    #[arg(long, default_value_t = 0, value_parser = units::within::<u64>(..))]
    seed: u64,
    /// The network of the addresses [default: 10.77.0.0/24]
    #[arg(long, value_name = "ADDRESS/BITS")]
    subnet: Option<Subnet>,
    /// Groups of hosts with their own links and a core, from a file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["hosts", "bandwidth", "link_latency", "jitter", "loss", "subnet"])]
    topology: Option<PathBuf>,
    /// What the network is called; its namespaces are NAME and NAME.HOST
    #[arg(long, default_value = NAME, value_parser = topology::name)]
    name: String,
    /// Remove a network of this name first, if there is one
    #[arg(long)]
    replace: bool,
    /// Print the hosts as one JSON object
    #[arg(long)]
    json: bool,
}

impl Up {
    fn topology(&self) -> Result<Topology, CommandError> {
        if let Some(path) = &self.topology {
            return Ok(Topology::read(path)?);
        }
        let shape = Shape {
            rate: self.bandwidth,
            delay: self.link_latency.unwrap_or_default(),
            jitter: self.jitter.unwrap_or_default(),
            loss: self.loss.unwrap_or_default(),
        };
        let subnet = self.subnet.unwrap_or_default();
        Topology::uniform(self.hosts.unwrap_or_default(), subnet, Link::both(shape)).map_err(refused)
    }
}

/// Within this, a signal to a group of processes has reached all of them.
const HEARD: Duration = Duration::from_millis(100);

pub fn run(up: &Up) -> Result<ExitCode, CommandError> {
    let topology = up.topology()?;
    let interrupt = Interrupt::listen().map_err(|error| format!("signals cannot be listened to: {error}"))?;
    let given_up = |code| {
        say(format_args!("gleaner: interrupted; the network {} is removed again", up.name));
        Ok(ExitCode::from(code))
    };
    up.congestion.as_deref().map_or(Ok(()), Network::check_congestion)?;
    let changes = Changes { by_relay: up.relay, seed: up.seed, ..Changes::default() };
    let network = match Network::up(&topology, &up.name, up.replace, changes) {
        Ok(network) => network,
        // A command that has just begun may still get the signals that this process gets. What was made is gone again.
        Err(error @ NetworkError::Command { .. }) => {
            thread::sleep(HEARD);
            return interrupt.code().map_or_else(|| Err(error.into()), given_up);
        }
        Err(error) => return Err(error.into()),
    };
    if let Some(code) = interrupt.code() {
        network.down()?;
        return given_up(code);
    }
    if let Some(Err(error)) = up.congestion.as_deref().map(|name| network.set_congestion(name)) {
        network.down()?;
        return Err(error.into());
    }
    if network.is_relayed && !up.relay {
        say(format_args!(
            "gleaner: this kernel has no netem, so a relay carries the packets of the network {}",
            up.name
        ));
    }
    let text = match up.json {
        true => json(&json!({
            "name": network.name, "subnet": network.topology.subnet, "hosts": network.hosts(),
            "relayed": network.is_relayed,
        })),
        false => network.hostfile(),
    };
    let mut out = io::stdout();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        network.down()?;
        return Err(format!(
            "the hosts cannot be printed: {error}; the network {} is removed again",
            up.name
        )
        .into());
    }
    Ok(ExitCode::SUCCESS)
}
