//! What workers say of the network that is to carry their links.

use super::cards::alone;
use super::rendezvous::misfit;
use crate::{Congestion, JoinConfig, Transport, TransportChoice, join};

#[tokio::test]
async fn another_transport_is_reported_to_both_sides() {
    let expected = "the transport of rank 2 at 127.0.0.1 is quic and that of rank 0 is tcp: give every worker the same one \
                    (--transport, GLEANER_TRANSPORT)";
    misfit(|hello| hello.transport = Transport::Quic.number(), expected).await;
    misfit(
        |hello| hello.transport = Transport::Verbs.number(),
        "the transport of rank 2 at 127.0.0.1 is verbs",
    )
    .await;
    misfit(|hello| hello.transport = 200, "the transport of rank 2 at 127.0.0.1 is of another version and")
        .await;
}

/// What belongs to one transport is refused for another, before any peer is looked for.
#[tokio::test]
async fn what_the_transport_has_not_is_refused() {
    let (tcp, verbs) = (TransportChoice::default(), Transport::Verbs.into());
    let device = TransportChoice { device: Some("rxe0".parse().unwrap()), ..tcp.clone() };
    let congestion = TransportChoice { congestion: Some(Congestion::Bbr), ..tcp.clone() };
    let sockets = TransportChoice { transport: verbs, sockets: "4".parse().unwrap(), ..tcp };
    for (choice, expected) in [
        (
            device,
            "the verbs device rxe0 was asked for, and the transport is tcp: leave it out (--verbs-device, \
             GLEANER_VERBS_DEVICE), or choose verbs (--transport, GLEANER_TRANSPORT)",
        ),
        (
            congestion,
            "the congestion controller bbr was asked for, and the transport is tcp: leave it out (--congestion, \
             GLEANER_CONGESTION), or choose quic (--transport, GLEANER_TRANSPORT)",
        ),
        (
            sockets,
            "4 sockets for each link were asked for, and the transport is verbs: leave them out (--sockets, \
             GLEANER_SOCKETS), or choose tcp (--transport, GLEANER_TRANSPORT)",
        ),
    ] {
        let Err(refused) = join(JoinConfig { choice, ..alone() }).await else { panic!("it was not refused") };
        assert_eq!(refused.to_string(), expected);
    }
}
