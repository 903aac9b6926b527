//! How long completions are looked for before they are waited for.

/// Looks in one poll: a microsecond or so. Then whatever else runs on that thread has its turn.
const TURN: u32 = 64;
/// Looks before waiting, at least and at most: a microsecond, and some tens of it.
const LEAST: u32 = 64;
const MOST: u32 = 2048;

/// Looks that are made before waiting: more while they find something, fewer while they do not.
pub(super) struct Looking {
    most: u32,
    /// Those since the last completion. More than the most once that is waited for.
    done: u32,
    /// Those that this poll may still make.
    left: u32,
}

/// What to do when there is no completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Look again.
    Look,
    /// Look again when polled again, which is to be soon.
    Yield,
    /// Wait for a notification.
    Wait,
}

impl Default for Looking {
    /// With all looks: who polls without waiting is found out by them, and for others they become fewer.
    fn default() -> Self {
        Self { most: MOST, done: 0, left: TURN }
    }
}

impl Looking {
    /// A poll begins.
    pub(super) fn begin(&mut self) {
        self.left = TURN;
    }

    /// There was nothing.
    pub(super) fn nothing(&mut self) -> Next {
        if self.done > self.most {
            return Next::Wait;
        }
        if self.done == self.most {
            self.done = u32::MAX;
            self.most = (self.most - self.most / 32).max(LEAST);
            return Next::Wait;
        }
        if self.left == 0 {
            return Next::Yield;
        }
        self.left -= 1;
        self.done += 1;
        Next::Look
    }

    /// There was something.
    pub(super) fn found(&mut self) {
        if (1..=self.most).contains(&self.done) {
            self.most = (self.most * 4).min(MOST);
        }
        self.done = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks before the first wait, and in how many polls.
    fn looks(looking: &mut Looking) -> (u32, u32) {
        let (mut looks, mut polls) = (0, 1);
        looking.begin();
        loop {
            match looking.nothing() {
                Next::Look => looks += 1,
                Next::Yield => {
                    polls += 1;
                    looking.begin();
                }
                Next::Wait => return (looks, polls),
            }
        }
    }

    #[test]
    fn looks_are_bounded_in_each_poll_and_before_each_wait() {
        let mut looking = Looking::default();
        assert_eq!(looks(&mut looking), (MOST, MOST / TURN));
        // A poll while it waits does not look again.
        assert_eq!(looks(&mut looking), (0, 1));
    }

    #[test]
    fn looks_become_fewer_while_they_find_nothing_and_more_when_they_do() {
        let mut looking = Looking::default();
        for _ in 0..200 {
            looks(&mut looking);
            // What comes after a wait was not found by looking.
            looking.found();
        }
        assert_eq!(looks(&mut looking).0, LEAST);
        looking.found();
        looking.begin();
        assert_eq!(looking.nothing(), Next::Look);
        looking.found();
        assert_eq!(looks(&mut looking).0, 4 * LEAST);
    }
}
