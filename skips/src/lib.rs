//! What tests say where they cannot run, so that no test is skipped unseen.
//!
//! A test that needs what a machine may lack, such as a C compiler or the right to make network namespaces, calls [`skip`] and
//! passes. `GLEANER_REQUIRE=cc,netns` names what must be there: such tests then fail. With `GLEANER_SKIPPED=FILE` each skip is a line
//! of that file, which `.ci/run` shows at its end.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::{env, thread};

/// Says that this test is skipped, for lack of `need`: one word, such as `netns`, that `GLEANER_REQUIRE` may name.
///
/// # Panics
/// `GLEANER_REQUIRE` names the need, or the file of `GLEANER_SKIPPED` cannot be written.
pub fn skip(need: &str, why: impl Display) {
    let required = env::var("GLEANER_REQUIRE").unwrap_or_default();
    assert!(
        !names(&required, need),
        "GLEANER_REQUIRE names {need}, without which this test is skipped: {why}"
    );
    println!("SKIPPED: {why}");
    if let Some(path) = env::var_os("GLEANER_SKIPPED") {
        let test = thread::current().name().unwrap_or("a thread").to_owned();
        let line = format!("{test}: {need}: {}\n", why.to_string().replace('\n', " "));
        let written = append(path.as_ref(), &line);
        assert!(written.is_ok(), "the file of GLEANER_SKIPPED cannot be written: {written:?}");
    }
}

/// Whether a list of words, with commas between, has this one.
fn names(list: &str, need: &str) -> bool {
    list.split(',').any(|name| name.trim() == need)
}

/// Tests run at once, in several processes: a line is written as a whole.
fn append(path: &std::path::Path, line: &str) -> io::Result<()> {
    OpenOptions::new().create(true).append(true).open(path)?.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_whole_words() {
        for (list, named) in [("cc", true), ("netns, cc", true), ("", false), ("gcc,cc1", false)] {
            assert_eq!(names(list, "cc"), named, "{list:?}");
        }
    }
}
