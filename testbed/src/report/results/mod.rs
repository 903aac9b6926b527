//! Pages whose tables and pictures are generated from stored measurements.
//!
//! A page has blocks: a comment that says in TOML what is shown, and below it what was generated, up to the line `<!-- end -->`.
//! [`asked`] says which numbers they show, [`Stored`] holds these, and [`filled`] is the page with all blocks generated again.

mod stored;
mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;

pub use stored::{Stamp, Stored};
use table::Table;

use crate::Error;

/// Where measurements lie, beside the pages.
pub const MEASUREMENTS: &str = "measurements";

/// Where pictures lie, as pages name it.
pub const PICTURES: &str = "../images";

const BEGINS: &str = "<!-- measured";
const SAID: &str = "-->";
const ENDS: &str = "<!-- end -->";

/// What a block shows.
enum Shown {
    Picture(Picture),
    Table(Box<Table>),
}

/// A picture of the report.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Picture {
    /// The experiment, by the name of its file.
    pub experiment: String,
    /// Its name among [the pictures](super::gallery) of the report.
    pub picture: String,
    /// The name of its file in the book, without `.svg`.
    pub file: String,
    /// What it shows, for readers who do not see it.
    pub words: String,
}

/// A block: what stands before it, and what it shows.
struct Block<'a> {
    before: &'a str,
    /// The comment, as it is written.
    comment: &'a str,
    line: usize,
    shown: Shown,
}

/// The blocks of a page, and what follows the last.
fn blocks<'a>(page: &str, text: &'a str) -> Result<(Vec<Block<'a>>, &'a str), Error> {
    let (mut blocks, mut rest) = (Vec::new(), text);
    while let Some(start) = rest.find(BEGINS) {
        let line = text[..text.len() - rest.len() + start].matches('\n').count() + 1;
        let refuse = |reason: String| Error::from(format!("{page}, line {line}: {reason}"));
        let (before, block) = rest.split_at(start);
        let said = block.find(SAID).map(|end| end + SAID.len());
        let said = said.ok_or_else(|| refuse(format!("this comment has no end; expected {SAID}")))?;
        let end =
            block.find(ENDS).ok_or_else(|| refuse(format!("this block has no end; expected {ENDS}")))?;
        let (comment, toml) = (&block[..said], &block[BEGINS.len()..said - SAID.len()]);
        let table: toml::Table = toml.parse().map_err(|e: toml::de::Error| refuse(e.to_string()))?;
        // By the key, so that what is wrong in a table is said of a table.
        let shown = if table.contains_key("picture") {
            table.try_into().map(Shown::Picture)
        } else {
            table.try_into().map(|table| Shown::Table(Box::new(table)))
        };
        let shown = shown.map_err(|e: toml::de::Error| refuse(e.to_string().trim().to_owned()))?;
        blocks.push(Block { before, comment, line, shown });
        rest = &block[end + ENDS.len()..];
    }
    Ok((blocks, rest))
}

/// What pages show of each experiment.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// The names of numbers.
    pub numbers: BTreeSet<String>,
    /// Pictures of the report.
    pub pictures: Vec<Picture>,
}

/// Adds what a page shows of each experiment.
///
/// # Errors
/// A block that cannot be read.
pub fn asked(page: &str, text: &str, into: &mut BTreeMap<String, Asked>) -> Result<(), Error> {
    for Block { line, shown, .. } in blocks(page, text)?.0 {
        match shown {
            Shown::Picture(picture) => {
                into.entry(picture.experiment.clone()).or_default().pictures.push(picture);
            }
            Shown::Table(table) => {
                let numbers = table.numbers().map_err(|reason| format!("{page}, line {line}: {reason}"))?;
                into.entry(table.experiment.clone()).or_default().numbers.extend(numbers);
            }
        }
    }
    Ok(())
}

/// A page with its blocks generated again, from what is stored in a directory.
///
/// # Errors
/// A block that cannot be read or has no numbers, measurements that are not stored, and a page that mixes builds.
pub fn filled(page: &str, text: &str, measurements: &Path) -> Result<String, Error> {
    let (blocks, rest) = blocks(page, text)?;
    let (mut filled, mut stamps) = (String::new(), BTreeMap::new());
    for Block { before, comment, line, shown } in blocks {
        let experiment = match &shown {
            Shown::Picture(picture) => &picture.experiment,
            Shown::Table(table) => &table.experiment,
        };
        let stored = Stored::read(&measurements.join(format!("{experiment}.jsonl")))?;
        let shows = match &shown {
            Shown::Picture(Picture { file, words, .. }) => format!("![{words}]({PICTURES}/{file}.svg)\n"),
            Shown::Table(table) => {
                table.markdown(&stored).map_err(|reason| format!("{page}, line {line}: {reason}"))?
            }
        };
        filled += &format!("{before}{comment}\n\n{shows}\n{}\n\n{ENDS}", stamped(&stored.stamp));
        stamps.insert(experiment.clone(), stored.stamp.commit);
    }
    let commits: BTreeSet<&Option<String>> = stamps.values().collect();
    if commits.len() > 1 {
        let named = |(name, commit): (&String, &Option<String>)| {
            format!("{name} at {}", commit.as_deref().unwrap_or("no commit"))
        };
        let found = stamps.iter().map(named).collect::<Vec<_>>().join(", ");
        let expected = "expected one commit for all that a page shows: measure again what is older, and store it with --from";
        return Err(format!("{page} mixes builds: {found}; {expected}").into());
    }
    Ok(filled + rest)
}

/// Where numbers come from, in a line below them.
fn stamped(stamp: &Stamp) -> String {
    let Stamp { experiment, commit, predicted_commit, machine, date, turns, .. } = stamp;
    let named = |commit: &String| {
        let clean = commit.trim_end_matches("-dirty");
        let changes = if clean == commit { "" } else { " with changes" };
        format!("at commit {}{changes}", clean.get(..10).unwrap_or(clean))
    };
    let measured = commit.as_ref().map_or("outside a checkout".to_owned(), named);
    let predicted =
        predicted_commit.as_ref().map(|commit| format!("; predicted {}", named(commit))).unwrap_or_default();
    let turns = if *turns == 1 { "one turn".to_owned() } else { format!("{turns} turns") };
    format!(
        "*`experiments/{experiment}.toml`, {turns}, {date} {measured}; {} cores of {}, kernel {}{predicted}.*",
        machine.cores, machine.processor, machine.kernel
    )
}
