//! Calls that all ranks make together, as the program's thread makes them.

use bytes::Bytes;
use tokio::sync::oneshot;

use super::Inner;
use crate::failure::{Error, Failure};
use crate::mailbox::Command;
use crate::notes::{self, Answer, Call, Purpose, Says};
use crate::replica::ReplicaError;

impl Inner {
    /// Refuses what workers do together on a parameter server.
    pub(super) fn expect_worker(&self) -> Result<(), Error> {
        let server = self.role_map.server(self.rank.0);
        server.map_or(Ok(()), |server| Err(ReplicaError::Server(server).into()))
    }

    fn call(&self, purpose: Purpose, says: Says) -> Result<Answer, Error> {
        self.expect_worker()?;
        let (answer, answered) = oneshot::channel();
        self.mailbox.send(Command::Call(Call { purpose, says, answer }));
        self.answer(answered)
    }

    pub(crate) fn gather(&self, purpose: Purpose, note: &[u8]) -> Result<Vec<Bytes>, Error> {
        if note.len() > notes::LONGEST {
            let reason = format!("a note of {} bytes; at most {} are possible", note.len(), notes::LONGEST);
            return Err(self.fail(Failure { rank: self.rank.0, step: None, reason }));
        }
        let notes = self.call(purpose, Says::Note(Bytes::copy_from_slice(note)))?.notes;
        if notes.len() == self.workers as usize {
            return Ok(notes.into_values().collect());
        }
        let reason = format!("it passed on {} notes of {} ranks", notes.len(), self.workers);
        Err(self.fail(Failure { rank: self.coordinator.0, step: None, reason }))
    }

    /// Fails unless all ranks wrote the same lines.
    pub(crate) fn agree(&self, purpose: Purpose, lines: &str) -> Result<(), Error> {
        self.agree_and_tell(purpose, lines, Bytes::new()).map(drop)
    }

    /// The same, and brings all ranks the notes of the ranks that have one.
    fn agree_and_tell(&self, purpose: Purpose, lines: &str, note: Bytes) -> Result<Vec<Bytes>, Error> {
        let Answer { other, notes } = self.call(purpose, Says::Lines(lines.into(), note))?;
        let Some(other) = other else { return Ok(notes.into_values().collect()) };
        // Only now are they shown, and only by two ranks.
        let shows = [0, other].contains(&self.rank.0);
        let shown = if shows { Bytes::copy_from_slice(lines.as_bytes()) } else { Bytes::new() };
        if shown.len() > notes::LONGEST {
            let reason = format!(
                "its layout differs, and takes {} bytes of the {} that can be shown",
                shown.len(),
                notes::LONGEST
            );
            return Err(self.fail(Failure { rank: self.rank.0, step: None, reason }));
        }
        let notes = self.call(purpose, Says::Lines("".into(), shown))?.notes;
        let lines = |rank| notes.get(&rank).map_or(&[][..], |note| note);
        Err(self.fail(notes::difference(other, lines(0), lines(other))))
    }

    /// Agrees on these lines, and on which run this is: the coordinator chooses it at random.
    pub(crate) fn agree_and_draw(&self, purpose: Purpose, lines: &str) -> Result<String, Error> {
        let mut chosen = Bytes::new();
        if self.coordinates() && self.run.get().is_none() {
            let mut bytes = [0; 16];
            let refused = |error| Error::System("there are no random numbers", std::io::Error::other(error));
            getrandom::fill(&mut bytes).map_err(refused)?;
            chosen = Bytes::copy_from_slice(&bytes);
        }
        let notes = self.agree_and_tell(purpose, lines, chosen)?;
        if let Some(run) = self.run.get() {
            return Ok(run.clone());
        }
        let chosen = notes.first().and_then(|note| <[u8; 16]>::try_from(&note[..]).ok());
        let Some(chosen) = chosen else {
            let reason = "it violated the protocol: the run that it has chosen makes no sense".into();
            return Err(self.fail(Failure { rank: self.coordinator.0, step: None, reason }));
        };
        Ok(self.run.get_or_init(|| format!("{:032x}", u128::from_be_bytes(chosen))).clone())
    }
}
