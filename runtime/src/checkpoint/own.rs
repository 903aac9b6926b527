//! What a trainer keeps of its own in a checkpoint: values and words, by name.

use std::path::Path;

use super::{CheckpointError, Found, State};

impl State {
    /// Adds values and words of the trainer's own. Where others have values in the same state, the names of these begin with `prefix`.
    pub(crate) fn keep(&mut self, prefix: &str, values: &[(&str, &[f32])], words: &[(&str, String)]) {
        let named = |(name, values): &(&str, &[f32])| (format!("{prefix}{name}"), values.to_vec());
        self.values.extend(values.iter().map(named));
        self.words.extend(words.iter().map(|(name, words)| ((*name).to_owned(), words.clone())));
    }

    /// Whether it says just this.
    pub(crate) fn expect_words(&self, path: &Path, words: &[(&str, String)]) -> Result<(), CheckpointError> {
        words.iter().try_for_each(|(name, expected)| {
            self.expect(path, name, Found(self.words.get(*name)), Found(Some(expected)))
        })
    }

    /// Whether it has so many values of each name.
    pub(crate) fn expect_values(
        &self,
        path: &Path,
        prefix: &str,
        values: &[(&str, &mut [f32])],
    ) -> Result<(), CheckpointError> {
        values.iter().try_for_each(|(name, values)| {
            let found = self.values.get(&format!("{prefix}{name}")).map(Vec::len);
            self.expect(path, &format!("length of '{name}'"), Found(found), Found(Some(values.len())))
        })
    }

    /// Gives back the values that were expected.
    pub(crate) fn give_back(&self, prefix: &str, values: &mut [(&str, &mut [f32])]) {
        for (name, values) in values {
            if let Some(own) = self.values.get(&format!("{prefix}{name}")) {
                values.copy_from_slice(own);
            }
        }
    }
}
