//! The name of an adapter.

use std::fmt;
use std::str::FromStr;

/// Which adapter carries links over verbs, and which port and GID of it: `NAME`, `NAME:PORT` or `NAME:PORT:GID`; what is left out is
/// chosen automatically. Behind it what the fabric asks for, such as `,tc=106,sl=3,pkey=1`; each is 0 by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerbsDevice {
    /// As `ibv_devices` shows it.
    pub name: String,
    /// Of its ports, which are numbered from 1.
    pub port: Option<u8>,
    /// The place in the port's list of GIDs.
    pub gid: Option<u32>,
    /// The class of packets with a GID: of RoCE v2 the field of IP that has DSCP and ECN.
    pub traffic_class: u8,
    /// The class of packets on InfiniBand, and the priority of some RoCE, up to 15.
    pub service_level: u8,
    /// The place in the port's list of partition keys.
    pub partition: u16,
}

impl fmt::Display for VerbsDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))?;
        self.gid.map_or(Ok(()), |gid| write!(f, ":{gid}"))?;
        let settings = [
            ("tc", u16::from(self.traffic_class)),
            ("sl", u16::from(self.service_level)),
            ("pkey", self.partition),
        ];
        let mut said = settings.into_iter().filter(|(_, value)| *value > 0);
        said.try_for_each(|(name, value)| write!(f, ",{name}={value}"))
    }
}

impl FromStr for VerbsDevice {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let expected = "NAME, NAME:PORT or NAME:PORT:GID, such as mlx5_0:1:3 (`ibv_devinfo -v` shows them), and behind it, if the \
                        fabric asks for it, ,tc=0 to 255, ,sl=0 to 15 and ,pkey=INDEX";
        let mut settings = text.split(',');
        let mut parts = settings.next().unwrap_or_default().split(':');
        let name = parts.next().filter(|name| !name.is_empty()).ok_or(expected)?.to_owned();
        let port = parts.next().map(str::parse).transpose().map_err(|_| expected)?;
        let gid = parts.next().map(str::parse).transpose().map_err(|_| expected)?;
        if parts.next().is_some() || port == Some(0) {
            return Err(expected);
        }
        let mut device = Self { name, port, gid, ..Self::default() };
        for setting in settings {
            let read = match setting.split_once('=') {
                Some(("tc", value)) => value.parse().map(|value| device.traffic_class = value),
                Some(("sl", value)) => value.parse().map(|value| device.service_level = value),
                Some(("pkey", value)) => value.parse().map(|value| device.partition = value),
                _ => return Err(expected),
            };
            read.map_err(|_| expected)?;
        }
        if device.service_level < 16 { Ok(device) } else { Err(expected) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_a_name_a_port_and_a_gid_and_what_the_fabric_asks_for() {
        let some = |name: &str, port, gid| VerbsDevice {
            name: name.to_owned(),
            port,
            gid,
            ..VerbsDevice::default()
        };
        let devices = [
            some("rxe0", None, None),
            some("mlx5_0", Some(2), None),
            some("mlx5_0", Some(1), Some(3)),
            VerbsDevice { traffic_class: 106, ..some("a", None, None) },
            VerbsDevice { service_level: 15, partition: 300, ..some("a", Some(1), None) },
        ];
        let texts = ["rxe0", "mlx5_0:2", "mlx5_0:1:3", "a,tc=106", "a:1,sl=15,pkey=300"];
        for (text, device) in texts.into_iter().zip(devices) {
            assert_eq!(device.to_string(), text);
            assert_eq!(text.parse(), Ok(device));
        }
        let wrongs = [
            "", ":1", "a:", "a:0", "a:300", "a:1:", "a:1:x", "a:1:2:3", "a,", "a,tc", "a,tc=256", "a,sl=16",
            "a,dscp=3",
        ];
        for wrong in wrongs {
            assert!(wrong.parse::<VerbsDevice>().unwrap_err().contains("NAME:PORT"), "{wrong}");
        }
    }
}
