//! The name of an adapter.

use std::fmt;
use std::str::FromStr;

/// Which adapter carries links over verbs, and which port and GID of it: `NAME`, `NAME:PORT` or `NAME:PORT:GID`. What is not said is
/// chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsDevice {
    /// As `ibv_devices` shows it.
    pub name: String,
    /// Of its ports, which are numbered from 1.
    pub port: Option<u8>,
    /// The place in the port's list of GIDs.
    pub gid: Option<u32>,
}

impl fmt::Display for VerbsDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))?;
        self.gid.map_or(Ok(()), |gid| write!(f, ":{gid}"))
    }
}

impl FromStr for VerbsDevice {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let expected = "NAME, NAME:PORT or NAME:PORT:GID, such as mlx5_0:1:3 (`ibv_devinfo -v` shows them)";
        let mut parts = text.split(':');
        let name = parts.next().filter(|name| !name.is_empty()).ok_or(expected)?.to_owned();
        let port = parts.next().map(str::parse).transpose().map_err(|_| expected)?;
        let gid = parts.next().map(str::parse).transpose().map_err(|_| expected)?;
        let fits = parts.next().is_none() && port != Some(0);
        fits.then_some(Self { name, port, gid }).ok_or(expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_a_name_a_port_and_a_gid() {
        let some = |name: &str, port, gid| VerbsDevice { name: name.to_owned(), port, gid };
        let devices =
            [some("rxe0", None, None), some("mlx5_0", Some(2), None), some("mlx5_0", Some(1), Some(3))];
        for (text, device) in ["rxe0", "mlx5_0:2", "mlx5_0:1:3"].into_iter().zip(devices) {
            assert_eq!(device.to_string(), text);
            assert_eq!(text.parse(), Ok(device));
        }
        for wrong in ["", ":1", "a:", "a:0", "a:300", "a:1:", "a:1:x", "a:1:2:3"] {
            assert!(wrong.parse::<VerbsDevice>().unwrap_err().contains("NAME:PORT"), "{wrong}");
        }
    }
}
