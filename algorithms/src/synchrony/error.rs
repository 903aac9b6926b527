//! An invalid synchrony, and calls that a worker may not make.

/// An invalid synchrony.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum SynchronyError {
    /// No such synchrony.
    #[error(
        "there is no synchrony '{name}'{}; choose one of {known}",
        crate::sentence::did_you_mean(name, known)
    )]
    Unknown {
        /// The name given.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A value that it does not take.
    #[error("synchrony {synchrony} takes no '{value}'; expected {takes}")]
    Value {
        /// Its name.
        synchrony: String,
        /// What stood behind the slash.
        value: String,
        /// What it takes.
        takes: &'static str,
    },
}

crate::sentence::debug_as_sentence!(SynchronyError);

/// A worker that does what it may not.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// No such worker.
    #[error(
        "worker {worker} came to a server of {workers} workers; expected one of the ranks below {workers}: start all ranks with the same number of servers"
    )]
    Unknown {
        /// The worker that came.
        worker: u32,
        /// How many workers there are.
        workers: u32,
    },
    /// A step that is past, or one that leaves out others.
    #[error(
        "worker {worker} came with step {step}, and the server expects its step {expected}: a worker takes its steps one by one, from where the servers' state stands; start all ranks from one checkpoint"
    )]
    Step {
        /// The worker that came.
        worker: u32,
        /// With which step.
        step: u64,
        /// Which one is its next.
        expected: u64,
    },
    /// A push while an earlier one is not answered.
    #[error(
        "worker {worker} came with step {step} while its step {awaited} was not answered; expected it to wait for the parameters of one step before it pushes the next"
    )]
    Early {
        /// The worker that came.
        worker: u32,
        /// With which step.
        step: u64,
        /// Which one was not answered.
        awaited: u64,
    },
    /// A push that was not granted.
    #[error(
        "worker {worker} pushed its step {step} without a grant; expected it to ask first, and to wait for its turn"
    )]
    Ungranted {
        /// The worker that pushed.
        worker: u32,
        /// Which step.
        step: u64,
    },
    /// A push in the background where there is none.
    #[error(
        "worker {worker} pushed in the background of its step {step}; expected that under osp alone, once in a step, and after the step's routine stage: start all ranks with the same synchrony"
    )]
    Background {
        /// The worker that pushed.
        worker: u32,
        /// Which step.
        step: u64,
    },
}

crate::sentence::debug_as_sentence!(PolicyError);
