//! How TCP on the hosts finds its speed: by default as on this machine.

use std::fs;

use super::{INTERFACE, Network, NetworkError, Node, commands};

/// The names that the kernel knows now.
const THERE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

impl Network {
    /// Refuses a congestion control that the kernel has not.
    ///
    /// # Errors
    /// A name that the kernel does not know, with those that it does.
    pub fn check_congestion(name: &str) -> Result<(), String> {
        let there = fs::read_to_string(THERE).unwrap_or_default();
        if there.split_whitespace().any(|known| known == name) {
            return Ok(());
        }
        let expected =
            format!("expected one of those that it has ({}), or try modprobe tcp_{name}", there.trim());
        Err(format!("this kernel has no congestion control {name} for TCP; {expected}"))
    }

    /// Has TCP on every host use a congestion control, such as `cubic`, for connections that are made from now on.
    ///
    /// It is a property of the hosts' routes: a namespace takes as its own setting only what the whole machine allows to every user.
    ///
    /// # Errors
    /// One that the kernel has not, or a command that fails.
    pub fn set_congestion(&self, name: &str) -> Result<(), NetworkError> {
        Self::check_congestion(name)?;
        let subnet = String::from(self.topology().subnet);
        for Node { namespace, address, .. } in self.hosts() {
            let route = format!("{subnet} dev {INTERFACE} proto kernel scope link src {address}");
            commands::batch("ip", &namespace, &[format!("route replace {route} congctl {name}")])?;
        }
        Ok(())
    }
}
