//! Gleaner: data-parallel training over slow networks. Workers exchange the largest entries of their gradients and
//! keep the rest as residuals for later steps, so that nothing is lost.
//!
//! A [`Session`] is one worker's membership in a job. Rank, number of workers and rendezvous address come
//! from the launcher of the process: `gleaner launch`, torchrun, Slurm or Open MPI. A [`Layout`] names the parameters of a
//! model and groups them; a [`Method`] says how they are exchanged. [`Gradients`] takes gradients
//! parameter by parameter, and returns the same [`Update`] on every worker, bit by bit.
//!
//! ```
//! use gleaner::{Layout, Method, Session};
//!
//! // Started by itself, this program is a job of one worker.
//! let session = Session::join()?;
//! let layout = Layout::new().parameter("weights", 4).parameter("bias", 2);
//! let mut gradients = session.gradients(&layout, Method::spardl().density(0.5))?;
//!
//! let mut weights = vec![0.0; 4];
//! for _step in 0..2 {
//!     // In the order in which backpropagation gives them.
//!     gradients.ready("bias", &[0.1, -3.0])?;
//!     gradients.ready("weights", &[4.0, 0.2, 0.0, 0.3])?;
//!     let update = gradients.wait()?;
//!     update.add_to("weights", &mut weights, -1.0)?;
//! }
//! // The first step delivered 4, −3 and 0.3. What it left, 0.2, came back in the second as 0.4 and was then larger than 0.3.
//! assert_eq!(weights, [-8.0, -0.4, 0.0, -0.3]);
//! # Ok::<(), gleaner::Error>(())
//! ```
//!
//! The crates behind these names are [`runtime`] and [`algorithms`]. The book in `docs/` explains both
//! of them, and compares every method with its paper.

pub use gleaner_algorithms::residual::{Collection, Correction, OnNonFinite, WholeSteps};
pub use gleaner_algorithms::synchrony::LateSgd;
pub use gleaner_algorithms::{Method, SelectOver, Sparsity};
pub use gleaner_runtime::launcher;
pub use gleaner_runtime::{
    Awaited, Cancelled, CheckpointError, Config, ConfigError, Congestion, Error, Failure, Finding, Gradients,
    Handle, Health, Layout, LayoutError, Options, OutOfMemory, Pass, Preference, Reducer, Replica,
    ReplicaError, Session, Skipped, Sockets, SparseReducer, StepTimes, Stepped, Transport, TransportChoice,
    Update, VerbsDevice, Waits, keep_freed_memory, local_rank,
};

pub use gleaner_algorithms as algorithms;
#[cfg(feature = "cuda")]
pub use gleaner_cuda as cuda;
pub use gleaner_runtime as runtime;

/// Every Rust example of the README and the book, compiled and run as a test of its own page.
#[cfg(doctest)]
mod pages {
    macro_rules! pages {
        ($($name:ident: $path:literal;)*) => {$(
            #[doc = include_str!(concat!("../", $path))]
            mod $name {}
        )*};
    }
    pages! {
        readme: "README.md";
        trainer: "docs/src/guide/trainer.md";
        accuracy: "docs/src/guide/accuracy.md";
        non_blocking: "docs/src/guide/non-blocking.md";
        sparse: "docs/src/guide/sparse.md";
        async_programs: "docs/src/guide/async.md";
        elements: "docs/src/guide/elements.md";
        choosing_synchrony: "docs/src/guide/synchrony.md";
        conservation: "docs/src/concepts/conservation.md";
        selection: "docs/src/concepts/selection.md";
        schedules: "docs/src/concepts/schedules.md";
        cost: "docs/src/concepts/cost.md";
        merging: "docs/src/concepts/merging.md";
        synchrony: "docs/src/concepts/synchrony.md";
    }
    #[cfg(feature = "cuda")]
    pages! {
        gpus: "docs/src/guide/cuda.md";
    }
}
