//! The transport that `auto` chooses.

use super::Transport;
use crate::VerbsDevice;

/// The transport to take, and why, where it is known of this host whether verbs can be used: by which adapter, or why not.
///
/// This is the whole rule: verbs where they can be used, and else TCP. QUIC is not taken, since it pays on links that lose packets
/// alone, which no worker can know when it joins.
pub(super) fn recommended(verbs: Result<String, String>) -> (Transport, String) {
    match verbs {
        Ok(adapter) => (Transport::Verbs, format!("links are plain, and verbs can be used here: {adapter}")),
        Err(reason) => (
            Transport::Tcp,
            format!("not verbs: {reason}; not quic: name it where links are long and lose packets"),
        ),
    }
}

/// By which adapter verbs can be used here, or why they cannot.
#[cfg(all(feature = "verbs", target_os = "linux"))]
pub(super) fn verbs(device: Option<&VerbsDevice>, is_plain: bool) -> Result<String, String> {
    crate::verbs::adapter(device, is_plain).map_err(|error| error.to_string())
}

/// Why verbs cannot be used here.
#[cfg(not(all(feature = "verbs", target_os = "linux")))]
pub(super) fn verbs(_: Option<&VerbsDevice>, _: bool) -> Result<String, String> {
    Err("this program is built without them".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_are_taken_where_they_can_be_used_and_else_tcp() {
        let (transport, why) = recommended(Ok("rxe0".to_owned()));
        assert_eq!((transport, why.ends_with("can be used here: rxe0")), (Transport::Verbs, true), "{why}");
        let (transport, why) = recommended(Err("no RDMA device is here".to_owned()));
        assert_eq!(transport, Transport::Tcp);
        assert!(why.starts_with("not verbs: no RDMA device is here; "), "{why}");
    }
}
