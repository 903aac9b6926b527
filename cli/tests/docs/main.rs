//! The README and the book: links lead somewhere, every page is in the summary, every method has its page, and no code block is
//! without a language. And what CONTRIBUTING.md says of the source: one meaning for a name, and one thought for a file.

#![allow(clippy::unwrap_used)]

mod printed;
mod promises;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Component, Path, PathBuf};

use gleaner::Method;
use gleaner_testbed::report::results::{MEASUREMENTS, asked, filled};

/// Methods that stand on the page of another one.
const BESIDE: [(&str, &str); 1] = [("exdyna-printed", "exdyna")];

/// Where every method's page is linked to.
const LISTS: [&str; 3] = ["README.md", "docs/src/introduction.md", "docs/src/concepts/cost.md"];

/// Crates for models on other frameworks, which have a README and a page of their own.
const FRAMEWORKS: [&str; 2] = ["burn", "candle"];

/// Lines of a file, at most.
const LINES: usize = 450;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// All Markdown files that a reader may meet, as paths from the root.
fn pages() -> BTreeMap<PathBuf, String> {
    let mut pages = BTreeMap::new();
    collect(Path::new("docs"), &mut pages);
    for entry in fs::read_dir(root()).unwrap() {
        let path = PathBuf::from(entry.unwrap().file_name());
        if path.extension().is_some_and(|extension| extension == "md") {
            pages.insert(path.clone(), fs::read_to_string(root().join(path)).unwrap());
        }
    }
    for package in FRAMEWORKS {
        let path = Path::new(package).join("README.md");
        pages.insert(path.clone(), fs::read_to_string(root().join(path)).unwrap());
    }
    pages
}

/// All files of Rust below a folder, as paths from the root.
fn sources(folder: &Path) -> BTreeMap<PathBuf, String> {
    let mut sources = BTreeMap::new();
    for entry in fs::read_dir(root().join(folder)).unwrap() {
        let path = folder.join(entry.unwrap().file_name());
        if root().join(&path).is_dir() && !path.starts_with("target") && !path.starts_with("shared") {
            sources.extend(self::sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.insert(path.clone(), fs::read_to_string(root().join(path)).unwrap());
        }
    }
    sources
}

/// The types and traits that a file defines outside its tests.
fn defined(text: &str) -> impl Iterator<Item = &str> {
    let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    code.lines().filter_map(|line| {
        let public = line.strip_prefix("pub").map(|rest| match rest.strip_prefix('(') {
            Some(rest) => rest.split_once(')').map_or(rest, |(_, rest)| rest).trim_start(),
            None => rest.trim_start(),
        });
        let (kind, rest) = public.unwrap_or(line).split_once(' ')?;
        let is_type = ["struct", "enum", "union", "trait", "type"].contains(&kind);
        is_type.then(|| rest.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default())
    })
}

fn collect(folder: &Path, pages: &mut BTreeMap<PathBuf, String>) {
    for entry in fs::read_dir(root().join(folder)).unwrap() {
        let path = folder.join(entry.unwrap().file_name());
        if root().join(&path).is_dir() {
            collect(&path, pages);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.insert(path.clone(), fs::read_to_string(root().join(path)).unwrap());
        }
    }
}

/// The lines outside fenced blocks, numbered from 1; fences themselves are left out.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fence: Option<&str> = None;
    text.lines().enumerate().filter_map(move |(number, line)| {
        let start = line.trim_start();
        match fence {
            Some(open) if start.starts_with(open) => fence = None,
            Some(_) => {}
            None if start.starts_with("```") => fence = Some("```"),
            None => return Some((number + 1, line)),
        }
        None
    })
}

/// A line without what stands between backticks, where brackets are no links.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join(" ")
}

/// Where the links and pictures of a page point: `](target)`, `[name]: target`, `src="target"`, `srcset="target"`.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    for (number, line) in prose(text) {
        let line = without_code(line);
        for (opening, closing) in [("](", ')'), ("src=\"", '"'), ("srcset=\"", '"')] {
            for after in line.split(opening).skip(1) {
                let target = after.split(closing).next().unwrap_or_default();
                links.push((number, target.split_whitespace().next().unwrap_or_default().to_owned()));
            }
        }
        if let Some((name, target)) = line.split_once("]: ")
            && name.starts_with('[')
        {
            links.push((number, target.trim().to_owned()));
        }
    }
    links
}

/// The anchors that mdBook and GitHub give to the headings of a page.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let headings = prose(text).filter_map(|(_, line)| {
        let title = line.trim_start_matches('#');
        (title.len() < line.len() && title.starts_with(' ')).then(|| title.trim())
    });
    headings
        .map(|title| {
            let plain = title.chars().filter_map(|c| match c {
                c if c.is_alphanumeric() || c == '_' || c == '-' => {
                    Some(c.to_lowercase().collect::<String>())
                }
                c if c.is_whitespace() => Some("-".to_owned()),
                _ => None,
            });
            let anchor: String = plain.collect();
            let count = seen.entry(anchor.clone()).or_default();
            *count += 1;
            if *count == 1 { anchor } else { format!("{anchor}-{}", *count - 1) }
        })
        .collect()
}

/// A path without `.` and `..`; none if it leaves the repository.
fn tidy(path: &Path) -> Option<PathBuf> {
    let mut tidy = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if !tidy.pop() => return None,
            Component::ParentDir => {}
            part => tidy.push(part),
        }
    }
    Some(tidy)
}

/// What is wrong with a link, if anything.
fn fault(pages: &BTreeMap<PathBuf, String>, page: &Path, link: &str) -> Option<String> {
    if ["https://", "http://", "mailto:"].iter().any(|scheme| link.starts_with(scheme)) {
        return None;
    }
    let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
    let target = if path.is_empty() {
        page.to_path_buf()
    } else {
        match tidy(&page.parent().unwrap_or(Path::new("")).join(path)) {
            Some(target) => target,
            None => return Some("leaves the repository".into()),
        }
    };
    if page.starts_with("docs/src") && !target.starts_with("docs/src") {
        return Some("leaves the book, where it would lead nowhere".into());
    }
    if !root().join(&target).exists() {
        return Some(format!("there is no {}", target.display()));
    }
    let anchor = anchor?;
    match pages.get(&target) {
        Some(text) if anchors(text).contains(anchor) => None,
        _ => Some(format!("{} has no heading with the anchor {anchor}", target.display())),
    }
}

#[test]
fn every_link_leads_somewhere() {
    let pages = pages();
    assert!(pages.contains_key(Path::new("README.md")));
    let mut faults = Vec::new();
    let mut count = 0;
    for (page, text) in &pages {
        for (line, link) in links(text) {
            count += 1;
            if let Some(fault) = fault(&pages, page, &link) {
                faults.push(format!("{}:{line}: {link}: {fault}", page.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(count > 50, "only {count} links were found: is this test blind?");
}

#[test]
fn every_page_is_in_the_summary_once() {
    let pages = pages();
    let summary = Path::new("docs/src/SUMMARY.md");
    let mut listed: Vec<PathBuf> =
        links(&pages[summary]).into_iter().map(|(_, link)| Path::new("docs/src").join(link)).collect();
    listed.sort();
    let there: Vec<PathBuf> =
        pages.into_keys().filter(|p| p.starts_with("docs/src") && p != summary).collect();
    assert_eq!(listed, there);
}

#[test]
fn every_method_has_a_page_and_is_in_all_lists() {
    let pages = pages();
    let mut unclaimed: BTreeSet<&Path> =
        pages.keys().map(PathBuf::as_path).filter(|page| page.starts_with("docs/src/methods")).collect();
    for method in Method::all() {
        let name = method.collective().name();
        let stands_on = BESIDE.iter().find(|(beside, _)| *beside == name).map_or(name, |(_, page)| *page);
        let page = Path::new("docs/src/methods").join(stands_on).with_extension("md");
        let text = pages.get(&page).unwrap_or_else(|| panic!("{name} has no page {}", page.display()));
        assert!(text.contains(name), "{} does not name {name}", page.display());
        unclaimed.remove(page.as_path());
        for list in LISTS.map(Path::new) {
            let is_its_page = |(_, link): (usize, String)| {
                let file = link.split('#').next().unwrap_or_default();
                tidy(&list.parent().unwrap().join(file)).is_some_and(|target| target == page)
            };
            assert!(links(&pages[list]).into_iter().any(is_its_page), "{} lacks {name}", list.display());
        }
    }
    assert!(unclaimed.is_empty(), "pages of no method: {unclaimed:?}");
}

#[test]
fn every_picture_is_used() {
    let pages = pages();
    let used: BTreeSet<PathBuf> = (pages.iter())
        .flat_map(|(page, text)| links(text).into_iter().map(move |(_, link)| (page, link)))
        .filter_map(|(page, link)| tidy(&page.parent()?.join(link)))
        .collect();
    for entry in fs::read_dir(root().join("docs/src/images")).unwrap() {
        let picture = Path::new("docs/src/images").join(entry.unwrap().file_name());
        assert!(used.contains(&picture), "no page shows {}", picture.display());
    }
}

/// A block without a language would be taken for Rust by rustdoc.
#[test]
fn every_code_block_says_its_language() {
    for (page, text) in pages() {
        let mut open = false;
        for (number, line) in text.lines().enumerate() {
            if let Some(language) = line.trim_start().strip_prefix("```") {
                assert!(open || !language.is_empty(), "{}:{}", page.display(), number + 1);
                open = !open;
            }
        }
        assert!(!open, "{} ends inside a code block", page.display());
    }
}

/// The examples of a page are tests because the library includes the page, or a crate for another framework does.
#[test]
fn every_page_with_examples_is_tested() {
    let library = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let crates = FRAMEWORKS.map(|package| {
        let text = fs::read_to_string(root().join(package).join("src/lib.rs")).unwrap();
        (Path::new(package).join("README.md"), text)
    });
    for (page, text) in pages() {
        let from_crate = format!("include_str!(\"../../{}\")", page.display());
        let listed = library.contains(&format!("\"{}\";", page.display()))
            || crates.iter().any(|(readme, text)| {
                text.contains(&from_crate)
                    || *readme == page && text.contains("include_str!(\"../README.md\")")
            });
        let examples = text.lines().any(|line| line.trim_start().starts_with("```rust"));
        assert!(
            listed || !examples,
            "{} is not in the list of pages in src/lib.rs, nor in the src/lib.rs of {}",
            page.display(),
            FRAMEWORKS.join(" or ")
        );
    }
}

/// Every page starts with its title, and has only one.
#[test]
fn every_page_has_one_title() {
    for (page, text) in pages().into_iter().filter(|(page, _)| !page.ends_with("SUMMARY.md")) {
        let titles = prose(&text).filter(|(_, line)| line.starts_with("# ")).count();
        assert_eq!(titles, 1, "{}", page.display());
    }
}

#[test]
fn every_name_means_one_thing() {
    let mut places: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for (path, text) in sources(Path::new("algorithms/src")) {
        if !path.ends_with("tests.rs") && !path.iter().any(|folder| folder == "tests") {
            defined(&text).for_each(|name| places.entry(name.to_owned()).or_default().push(path.clone()));
        }
    }
    let twice: Vec<_> = places.iter().filter(|(_, places)| places.len() > 1).collect();
    assert!(twice.is_empty(), "defined twice: {twice:?}");
    let contributing = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let names = contributing.split("\n## Names\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = names.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let listed: Vec<&str> =
        rows.flat_map(|row| row.split(',')).map(|name| name.trim_matches([' ', '`'])).collect();
    assert!(listed.len() > 30, "only {} names were found: is this test blind?", listed.len());
    for name in listed {
        assert!(places.contains_key(name), "{name} is nowhere in algorithms/src any more: remove it");
    }
}

#[test]
fn every_file_is_short() {
    let sources = sources(Path::new(""));
    assert!(sources.len() > 300, "only {} files were found: is this test blind?", sources.len());
    let lengths = sources.iter().map(|(path, text)| (path, text.lines().count()));
    let long: Vec<_> = lengths.filter(|&(_, lines)| lines > LINES).collect();
    assert!(long.is_empty(), "more than {LINES} lines: {long:?}");
}

#[test]
fn names_are_found_where_they_are_defined() {
    let text = "pub struct One<T>(T);\npub(super) enum Two { A }\nstruct Three;\n    type Inner = u8;\nfn f() {}\n// struct No\n\
                pub(in crate::a) trait Four: One {}\ntype Five = u8;\n#[cfg(test)]\nmod tests {\nstruct Six;\n}\n";
    assert_eq!(defined(text).collect::<Vec<_>>(), ["One", "Two", "Three", "Four", "Five"]);
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let text = "# One title\n\n[a](b.md#c) `[no](code.md)` ![p](i.svg)\n```text\n[no](no.md)\n```\n[r]: x.md\n## Two `words`\n## Two words\n";
    let found: Vec<String> = links(text).into_iter().map(|(_, link)| link).collect();
    assert_eq!(found, ["b.md#c", "i.svg", "x.md"]);
    let expected = ["one-title", "two-words", "two-words-1"].map(String::from);
    assert_eq!(anchors(text), BTreeSet::from(expected));

    let page = PathBuf::from("docs/src/introduction.md");
    let pages = BTreeMap::from([(page.clone(), text.to_owned())]);
    assert_eq!(fault(&pages, &page, "#two-words-1"), None);
    assert_eq!(fault(&pages, &page, "https://example.org"), None);
    for broken in ["#three", "nowhere.md", "../../README.md", "../../../../etc", "SUMMARY.md#nothing"] {
        assert!(fault(&pages, &page, broken).is_some(), "{broken}");
    }
}

/// Tables and pictures of the results are those that the stored measurements give, and a page shows one build.
#[test]
fn what_pages_show_is_what_was_measured() {
    let folder = root().join("docs/src/results");
    let measurements = folder.join(MEASUREMENTS);
    let (mut shown, mut pages) = (BTreeMap::new(), 0);
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "md") {
            let (page, text) = (path.display().to_string(), fs::read_to_string(&path).unwrap());
            asked(&page, &text, &mut shown).unwrap_or_else(|error| panic!("{error}"));
            let filled = filled(&page, &text, &measurements).unwrap_or_else(|error| panic!("{error}"));
            assert!(
                filled == text,
                "{page} is not as its measurements are: run gleaner testbed pages docs/src/results"
            );
            pages += 1;
        }
    }
    assert!(pages > 5 && !shown.is_empty(), "{pages} pages, {shown:?}");
    for entry in fs::read_dir(&measurements).unwrap() {
        let path = entry.unwrap().path();
        let experiment = path.file_stem().unwrap().to_str().unwrap();
        assert!(shown.contains_key(experiment), "no page shows {}", path.display());
        let file = root().join("experiments").join(experiment).with_extension("toml");
        assert!(file.exists(), "{} is of no experiment", path.display());
    }
}
