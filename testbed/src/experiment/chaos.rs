//! What goes wrong on purpose, and when: the `[[chaos]]` of an experiment's file.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Deserialize;

use super::case::{Case, Pattern};
use super::file::check_link;
use gleaner_units::{self as units, QuantityError};

/// Something that is done to a job while it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// When.
    pub when: When,
    /// What.
    pub act: Act,
    /// After which time it is undone; never, if none.
    pub lasts: Option<Duration>,
    /// Which cases it is for; all, if it is empty.
    pub cases: Pattern,
}

/// A moment of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// So long after its workers were started.
    At(Duration),
    /// Once so many steps are done, those of the warm-up included.
    Step(u64),
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::At(at) => write!(f, "after {:.2} s", at.as_secs_f64()),
            Self::Step(step) => write!(f, "at step {step}"),
        }
    }
}

/// What is done: to a host's link, by the host's number, which is that of its worker, or to a worker, by its rank.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    /// The host's link goes down; undone, it is mended.
    Cut(u32),
    /// The host's link comes up.
    Mend(u32),
    /// These properties of the host's link change, with none to what they were; undone, they are those of the case.
    Reshape(u32, Properties),
    /// The worker gets at most a share of one processor's time, above 0 and below 1; undone, what it can use.
    Slow(u32, f64),
    /// The worker is killed.
    Kill(u32),
    /// The worker is stopped; undone, it goes on.
    Stop(u32),
    /// The worker goes on.
    Continue(u32),
}

/// Properties of a link by name, as written.
pub type Properties = BTreeMap<&'static str, String>;

/// One `[[chaos]]` as it is written, without `when`, whose values need the matrix.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    at: Option<String>,
    step: Option<u64>,
    #[serde(rename = "do")]
    verb: Verb,
    host: Option<u32>,
    rank: Option<u32>,
    #[serde(rename = "for")]
    lasts: Option<String>,
    share: Option<f64>,
    bandwidth: Option<String>,
    link_latency: Option<String>,
    jitter: Option<String>,
    loss: Option<String>,
    pub cases: Option<super::file::Keys>,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Verb {
    Cut,
    Mend,
    Reshape,
    Slow,
    Kill,
    Stop,
    Continue,
}

impl Entry {
    /// The event, for cases with at least so many workers. Conflicts are reported by name.
    pub fn event(&self, cases: Pattern, workers: u32) -> Result<Event, String> {
        let when = match (&self.at, self.step) {
            (Some(at), None) => When::At(units::duration(at).map_err(|e| unread("at", e))?),
            (None, Some(step)) => When::Step(step),
            _ => return Err("a [[chaos]] has either 'at = \"3s\"' or 'step = 20'".into()),
        };
        let lasts = self.lasts.as_deref().map(units::duration).transpose().map_err(|e| unread("for", e))?;
        let act = self.act(workers)?;
        if lasts.is_some() && matches!(act, Act::Mend(_) | Act::Kill(_) | Act::Continue(_)) {
            return Err("'for' goes with cut, reshape, slow and stop; what else is done stays done".into());
        }
        Ok(Event { when, act, lasts, cases })
    }

    fn act(&self, workers: u32) -> Result<Act, String> {
        let Self { bandwidth, link_latency, jitter, loss, .. } = self;
        let properties =
            [("bandwidth", bandwidth), ("link_latency", link_latency), ("jitter", jitter), ("loss", loss)];
        let given = properties.into_iter().filter_map(|(name, text)| Some((name, text.clone()?)));
        let link: Properties = given.collect();
        link.iter().try_for_each(|(name, text)| check_link(name, text))?;
        if (self.verb == Verb::Reshape) == link.is_empty() {
            let needs = "needs one of bandwidth, link_latency, jitter and loss, and nothing else takes them";
            return Err(format!("'do = \"reshape\"' {needs}"));
        }
        let share = match (self.verb, self.share) {
            (Verb::Slow, Some(share)) if share > 0.0 && share < 1.0 => share,
            (Verb::Slow, _) => {
                let needs = "the worker's share of one processor: a number above 0 and below 1";
                return Err(format!("'do = \"slow\"' needs 'share', {needs}"));
            }
            (_, Some(_)) => return Err("'share' goes with 'do = \"slow\"'".into()),
            (_, None) => 1.0,
        };
        let number = |key: &str, number: Option<u32>, other: Option<u32>, advice: &str| match (number, other)
        {
            (Some(found), None) if found < workers => Ok(found),
            (Some(found), None) => Err(format!(
                "'{key} = {found}' is not there in a case with {workers} workers; they are numbered from 0 to {}",
                workers - 1
            )),
            _ => Err(advice.to_owned()),
        };
        let no_host = "cut, mend and reshape need 'host', the number of one, and no 'rank'";
        let no_rank = "slow, kill, stop and continue need 'rank', and no 'host'";
        let host = || number("host", self.host, self.rank, no_host);
        let rank = || number("rank", self.rank, self.host, no_rank);
        Ok(match self.verb {
            Verb::Cut => Act::Cut(host()?),
            Verb::Mend => Act::Mend(host()?),
            Verb::Reshape => Act::Reshape(host()?, link),
            Verb::Slow => Act::Slow(rank()?, share),
            Verb::Kill => Act::Kill(rank()?),
            Verb::Stop => Act::Stop(rank()?),
            Verb::Continue => Act::Continue(rank()?),
        })
    }
}

fn unread(key: &str, error: QuantityError) -> String {
    format!("'{key}': {error}")
}

impl Act {
    /// Whether it needs an emulated network.
    pub fn is_of_network(&self) -> bool {
        matches!(self, Self::Cut(_) | Self::Mend(_) | Self::Reshape(..))
    }

    /// What ends it, if it lasts for a while.
    pub fn undone(&self) -> Option<Act> {
        match self {
            Self::Cut(host) => Some(Self::Mend(*host)),
            Self::Reshape(host, _) => Some(Self::Reshape(*host, Properties::new())),
            Self::Slow(rank, _) | Self::Stop(rank) => Some(Self::Continue(*rank)),
            Self::Mend(_) | Self::Kill(_) | Self::Continue(_) => None,
        }
    }
}

/// Whether these acts, in this order, leave a job that may well fail: a worker killed, cut off or stopped for good.
pub fn is_deadly(acts: &[Act]) -> bool {
    acts.iter().enumerate().any(|(i, act)| {
        let undone = act.undone().is_some_and(|end| acts[i..].contains(&end));
        matches!(act, Act::Kill(_)) || (matches!(act, Act::Cut(_) | Act::Stop(_)) && !undone)
    })
}

/// The events of a file that are for this case.
pub fn of_case<'a>(events: &'a [Event], case: &Case) -> Vec<&'a Event> {
    events.iter().filter(|event| event.cases.fits(case)).collect()
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Cut(host) => write!(f, "cut host {host}"),
            Self::Mend(host) => write!(f, "mend host {host}"),
            Self::Reshape(host, link) if link.is_empty() => write!(f, "reshape host {host} as it was"),
            Self::Reshape(host, link) => {
                write!(f, "reshape host {host}")?;
                link.iter().try_for_each(|(name, text)| write!(f, " {name} {text}"))
            }
            Self::Slow(rank, share) => write!(f, "slow rank {rank} to {share}"),
            Self::Kill(rank) => write!(f, "kill rank {rank}"),
            Self::Stop(rank) => write!(f, "stop rank {rank}"),
            Self::Continue(rank) => write!(f, "continue rank {rank}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_not_undone_is_deadly() {
        let (cut, mend, stop) = (Act::Cut(1), Act::Mend(1), Act::Stop(1));
        for (acts, deadly) in [
            (vec![], false),
            (vec![cut.clone()], true),
            (vec![cut.clone(), mend.clone()], false),
            (vec![mend.clone(), cut.clone()], true),
            (vec![cut.clone(), Act::Mend(2)], true),
            (vec![stop.clone()], true),
            (vec![stop, Act::Continue(1)], false),
            (vec![Act::Kill(0), cut, mend], true),
            (vec![Act::Slow(0, 0.5)], false),
        ] {
            assert_eq!(is_deadly(&acts), deadly, "{acts:?}");
        }
    }
}
