//! What commands print in the book is what they print, where it follows from their arguments alone.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::{pages, root};

/// Words of commands whose outputs depend on neither the machine nor the time, and which take no time themselves.
const EXACT: [&str; 4] = ["plan --", "merge-plan --", "--workload expected", "--synchrony"];

fn gleaner<'a>(arguments: impl Iterator<Item = &'a str>) -> String {
    let output =
        Command::new(env!("CARGO_BIN_EXE_gleaner")).args(arguments).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(arguments: &str) -> Value {
    serde_json::from_str(&gleaner(arguments.split(' ').chain(["--json"]))).unwrap()
}

/// A page may show a part: its lines stand in the output in the same order.
#[test]
fn blocks_that_begin_with_a_command_are_its_output() {
    let mut compared = 0;
    for (path, text) in pages() {
        for block in text.split("\n```text\n$ gleaner ").skip(1) {
            let (command, rest) = block.split_once('\n').unwrap();
            if !EXACT.iter().any(|exact| command.contains(exact)) {
                continue;
            }
            let output = gleaner(command.split(' '));
            let mut lines = output.lines().map(str::trim_end);
            for shown in rest.lines().take_while(|line| *line != "```") {
                assert!(
                    lines.any(|line| line == shown),
                    "{}: gleaner {command}\n{shown}\n\n{output}",
                    path.display()
                );
            }
            compared += 1;
        }
    }
    assert!(compared > 5, "{compared}");
}

#[test]
fn when_it_pays_shows_what_is_predicted() {
    let page = &pages()[std::path::Path::new("docs/src/when-it-pays.md")];
    for (rate, link) in
        [("100mbit", "100 Mbit/s"), ("1gbit", "1 Gbit/s"), ("10gbit", "10 Gbit/s"), ("25gbit", "25 Gbit/s")]
    {
        let report = json(&format!(
            "simulate --model resnet50 --compute 180ms --method spardl,ring --workers 8 --bandwidth {rate} --link-latency 25us --density 0.01 --workload expected"
        ));
        let iteration = |name: &str| {
            let of = |method: &&Value| method["method"] == name;
            report["methods"].as_array().unwrap().iter().find(of).unwrap()["seconds_iteration"]
                .as_f64()
                .unwrap()
        };
        let cells =
            [iteration("ring"), iteration("spardl")].map(|seconds| format!("{:.1} ms", 1e3 * seconds));
        let row = page.lines().find(|line| line.starts_with(&format!("| {link} |"))).unwrap();
        let shown: Vec<String> = row.split('|').skip(2).map(|cell| cell.trim().replace(',', "")).collect();
        assert_eq!(shown[..2], cells, "{row}");
        let ratio: f64 = shown[2].parse().unwrap();
        assert!((ratio / (iteration("ring") / iteration("spardl")) - 1.0).abs() < 0.01, "{row}");
    }
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("speedup.svg");
    gleaner("plan --speedup --workers 8 --density 1% --svg".split(' ').chain([picture.to_str().unwrap()]));
    let shown = fs::read_to_string(root().join("docs/src/images/speedup.svg")).unwrap();
    assert!(fs::read_to_string(picture).unwrap() == shown, "docs/src/images/speedup.svg is another picture");
}
