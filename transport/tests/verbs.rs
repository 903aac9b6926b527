//! What every network promises, over verbs. It needs an RDMA device, and says SKIPPED where there is none; `tests/verbs.rs` of
//! the command runs the same in an emulated machine that has one.
#![cfg(all(feature = "verbs", target_os = "linux"))]
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use gleaner_transport::tcp::JoinError;
use gleaner_transport::verbs::{self, VerbsError};
use gleaner_transport::{adverse, conformance};
use support::{configs, over_verbs};

/// Whether there is a device; says so if not.
async fn is_here() -> bool {
    let config = configs(1, Duration::from_secs(60), true).remove(0);
    match verbs::join(config).await {
        Ok(_) => true,
        Err(JoinError::Verbs(error @ (VerbsError::NoLibrary { .. } | VerbsError::NoDevice { .. }))) => {
            gleaner_skips::skip("verbs", error);
            false
        }
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verbs_keep_the_laws() {
    if is_here().await {
        conformance::check(over_verbs).await;
    }
}

#[tokio::test]
async fn verbs_keep_the_laws_in_one_thread_and_as_awkward_as_may_be() {
    if is_here().await {
        conformance::check(async |workers| {
            let networks = over_verbs(workers).await.into_iter().zip(1..);
            networks.map(|(inner, seed)| adverse::network(inner, seed)).collect()
        })
        .await;
    }
}

#[tokio::test]
async fn links_that_would_have_to_be_encrypted_are_refused() {
    let config = configs(1, Duration::from_secs(60), false).remove(0);
    let error = verbs::join(config).await.unwrap_err();
    assert!(matches!(error, JoinError::Verbs(VerbsError::Sealed)), "{error}");
}
