//! The hostfile: one host a line, optionally with `slots=K` and `address=A`; `#` begins a comment.

use std::path::Path;

use super::{Host, LaunchError};

const WORDS: &str = "`slots=K` (how many workers run there) or `address=A` (the host's address in the network of \
                     the workers)";

/// More workers on one host are a slip of the finger.
const MOST_SLOTS: u32 = 1024;

/// Reads a hostfile.
pub fn read(path: impl AsRef<Path>) -> Result<Vec<Host>, LaunchError> {
    let path = path.as_ref();
    let file = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|source| LaunchError::UnreadableHostfile { file: file.clone(), source })?;
    parse(&text, &file)
}

/// Parses the text of a hostfile; `file` is its name in errors.
pub fn parse(text: &str, file: &str) -> Result<Vec<Host>, LaunchError> {
    let mut hosts: Vec<Host> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(name) = words.next() else { continue };
        let refuse = |word: &str, expected: String| LaunchError::Hostfile {
            file: file.to_owned(),
            line: index + 1,
            word: word.to_owned(),
            expected,
        };
        if name.starts_with('-') || name.contains('=') {
            return Err(refuse(name, format!("a host's name first, then {WORDS}")));
        }
        if hosts.iter().any(|host| host.name == name) {
            return Err(refuse(
                name,
                "every host once; for several workers on it, write `slots=K`".to_owned(),
            ));
        }
        let mut host = Host::new(name);
        let (mut slots_seen, mut address_seen) = (false, false);
        for word in words {
            match word.split_once('=') {
                Some(("slots", number)) if !slots_seen => {
                    let slots = number.parse().ok().filter(|slots| (1..=MOST_SLOTS).contains(slots));
                    host.slots = slots
                        .ok_or_else(|| refuse(word, format!("`slots=K` with K from 1 to {MOST_SLOTS}")))?;
                    slots_seen = true;
                }
                Some(("address", address)) if !address_seen => {
                    if address.is_empty() {
                        return Err(refuse(word, "an address after `address=`".to_owned()));
                    }
                    host.address = Some(address.to_owned());
                    address_seen = true;
                }
                Some(("slots" | "address", _)) => {
                    return Err(refuse(word, "`slots` and `address` at most once a line".to_owned()));
                }
                _ => return Err(refuse(word, WORDS.to_owned())),
            }
        }
        hosts.push(host);
    }
    if hosts.is_empty() {
        return Err(LaunchError::EmptyHostfile { file: file.to_owned() });
    }
    Ok(hosts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        parse(text, "hosts").unwrap_err().to_string()
    }

    #[test]
    fn hosts_slots_addresses_comments_and_blank_lines() {
        let hosts =
            parse("# two racks\n\nme@node1 slots=4 # fast\n  node2 address=10.0.0.2\n", "hosts").unwrap();
        let node1 = Host { name: "me@node1".into(), slots: 4, address: None };
        let node2 = Host { name: "node2".into(), slots: 1, address: Some("10.0.0.2".into()) };
        assert_eq!(hosts, [node1, node2]);
    }

    #[test]
    fn an_unknown_word_is_named_with_its_place() {
        let error = refused("node1\n\nnode2 slot=3");
        assert!(error.starts_with("hosts, line 3: found `slot=3`, expected `slots=K`"), "{error}");
        assert!(refused("node1 node2").contains("line 1: found `node2`"));
    }

    #[test]
    fn what_is_no_host_or_no_number_is_refused() {
        for (text, word) in [
            ("a slots=0", "slots=0"),
            ("a slots=x", "slots=x"),
            ("a slots=-1", "slots=-1"),
            ("a slots=44444", "slots=44444"),
            ("a slots=1 slots=2", "slots=2"),
            ("a address=", "address="),
            ("-oProxyCommand=x", "-oProxyCommand=x"),
            ("slots=2", "slots=2"),
            ("a\na", "a"),
        ] {
            let error = refused(text);
            assert!(error.contains(&format!("found `{word}`")), "{text}: {error}");
        }
        assert!(refused("# no host\n").contains("names no host"));
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = read("/nowhere/hosts").unwrap_err().to_string();
        assert!(error.contains("/nowhere/hosts cannot be read"), "{error}");
    }
}
