//! What can go wrong with an emulated network.

/// What went wrong with an emulated network, in a sentence.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// There is no such network.
    #[error("{0}")]
    None(String),
    /// A network that was not finished.
    #[error("{0}")]
    Half(String),
    /// `ip` or `tc` failed: what was run, and what it said.
    #[error("`{0}` failed: {1}")]
    Command(String, String),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl From<String> for NetworkError {
    fn from(sentence: String) -> Self {
        Self::Other(sentence)
    }
}
