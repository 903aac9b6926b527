//! What workers say of the network that is to carry their links.

use super::rendezvous::misfit;
use crate::Transport;

#[tokio::test]
async fn another_transport_is_told_to_both_sides() {
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
