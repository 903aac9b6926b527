//! What commands print in the book is what they print, where it follows from their arguments alone.

use std::fs;
use std::path::Path;
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

/// A number of the one of these objects that has a field with this text.
fn number(objects: &Value, (key, text): (&str, &str), field: &str) -> f64 {
    objects.as_array().unwrap().iter().find(|object| object[key] == text).unwrap()[field].as_f64().unwrap()
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
    let page = &pages()[Path::new("docs/src/when-it-pays.md")];
    for (rate, link) in
        [("100mbit", "100 Mbit/s"), ("1gbit", "1 Gbit/s"), ("10gbit", "10 Gbit/s"), ("25gbit", "25 Gbit/s")]
    {
        let report = json(&format!(
            "simulate --model resnet50 --compute 180ms --method spardl,ring --workers 8 --bandwidth {rate} --link-latency 25us --density 0.01 --workload expected"
        ));
        let iteration = |name| number(&report["methods"], ("method", name), "seconds_iteration");
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

/// The page's table of five models: its commands take the pass of x = 1, and the sentence below them that of x = 2.
#[test]
fn osp_shows_what_is_predicted_of_five_models() {
    let page = &pages()[Path::new("docs/src/results/osp.md")];
    let section = page.split("\n## ").find(|section| section.starts_with("The five models\n")).unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| ")).skip(1);
    let commands = section.lines().filter_map(|line| line.strip_prefix("$ gleaner "));
    let same = section.split_once("and the same with `--compute` ").unwrap().1;
    let passes = same.split_once(" ms").unwrap().0.split(' ').filter(|word| *word != "and");
    let mut compared = 0;
    for ((row, command), pass) in rows.zip(commands).zip(passes) {
        let (before, rest) = command.split_once("--compute ").unwrap();
        let other =
            format!("{before}--compute {}ms {}", pass.trim_matches(','), rest.split_once(' ').unwrap().1);
        let [first, second] = [command, &other].map(|command| {
            let report = json(command);
            let of = |name, field| number(&report["synchronies"], ("synchrony", name), field);
            let ratio = |name| format!("{:.2}", of(name, "throughput") / of("bsp", "throughput"));
            assert_eq!(ratio("asp"), ratio("r2sp"), "{command}");
            let exchange = format!("{:.1}", 1e3 * of("bsp", "seconds_batch_synchronisation"));
            [exchange, ratio("osp/budget=bound"), ratio("asp")]
        });
        assert_eq!(first[0], second[0], "{command}: the exchange does not depend on the pass");
        let shown: Vec<&str> = row.split('|').map(str::trim).skip(3).take(5).collect();
        assert_eq!(shown, [&first[..], &second[1..]].concat(), "{row}");
        compared += 1;
    }
    assert_eq!(compared, 5);
}
