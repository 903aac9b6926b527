//! `gleaner testbed chaos`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use gleaner_testbed::campaign::{self, Checked, Course, Courses, Fault, Phase, Row, Settings, tally};
use gleaner_testbed::experiment::Interrupt;
use gleaner_units as units;
use serde_json::json;

use crate::crew;
use crate::report::{self, CommandError};

const EXAMPLES: &str = "\
Examples:
  gleaner testbed chaos --runs 1000
  gleaner testbed chaos --runs 28 --seed 7 --json
  gleaner testbed chaos --seed 7 --only 17                (that job again, and what it says)

The exit code is 0 if nothing was wrong, 1 if anything was, 130 after Ctrl-C and 143 after SIGTERM.";

/// Disturb jobs at random moments, and check whether they end as they should
///
/// Every job is one of real processes on emulated hosts. Faults take turns: kill, stop, cut, slow link, flood, full disk, full
/// or unread standard error, changed bytes, unequal steps, or nothing at all; moments are spread evenly over the parts of a job's
/// life. Needs root.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Chaos {
    /// How many jobs
    #[arg(long, value_name = "JOBS", default_value_t = 140, value_parser = units::within::<u64>(..))]
    runs: u64,
    /// Random seed of all faults and moments [default: random]
    #[arg(long, value_parser = units::within::<u64>(..))]
    seed: Option<u64>,
    /// Run only the job of this number, and print its output
    #[arg(long, value_name = "NUMBER", value_parser = units::within::<u64>(..), conflicts_with = "runs")]
    only: Option<u64>,
    /// Workers of each job [default: 2 to 8, sampled for each]
    #[arg(long, value_name = "P", value_parser = units::within::<u32>(2..=32))]
    workers: Option<u32>,
    /// How long a silent worker counts as alive
    #[arg(long, value_name = "TIME", default_value = "4s", value_parser = crew::timeout)]
    timeout: Duration,
    /// How many jobs run at once
    #[arg(long, value_name = "JOBS", default_value_t = 2, value_parser = units::within::<u8>(1..=16))]
    at_once: u8,
    /// One JSON object on standard output instead of a table
    #[arg(long)]
    json: bool,
}

pub fn run(chaos: &Chaos) -> Result<ExitCode, CommandError> {
    let program =
        std::env::current_exe().map_err(|e| format!("the path of this program is not known: {e}"))?;
    // A hasher of the standard library is seeded at random.
    let random = || std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0) >> 44;
    let seed = chaos.seed.unwrap_or_else(random);
    // First of all, so that a campaign that is ended or lost can be run again.
    gleaner_runtime::report::say(format_args!("gleaner testbed chaos: seed {seed}"));
    let settings = Settings {
        program,
        workers: chaos.workers,
        timeout: chaos.timeout,
        at_once: if chaos.only.is_some() { 1 } else { chaos.at_once.into() },
        seed,
    };
    let numbers = chaos.only.map_or(0..chaos.runs, |only| only..only + 1);
    let interrupt = Interrupt::listen().map_err(|error| format!("signals cannot be listened to: {error}"))?;
    let bar = crew::bar(numbers.end - numbers.start);
    bar.tick();
    let started = Instant::now();
    let workers = chaos.workers.map_or_else(String::new, |workers| format!(" --workers {workers}"));
    let again = format!("gleaner testbed chaos{workers} --timeout {}ms", chaos.timeout.as_millis());
    let on_end = |checked: &Checked| {
        bar.inc(1);
        bar.set_message(checked.plan.to_string());
        if checked.wrong.is_empty() && chaos.only.is_none() {
            return;
        }
        let again = format!("{again} --seed {seed} --only {}", checked.plan.number);
        gleaner_runtime::report::say(described(checked, &again));
    };
    let done = campaign::run(&settings, numbers, on_end, || interrupt.code().is_some());
    bar.finish_and_clear();
    let (courses, checked) = done?;
    let rows = tally(&checked);
    let wrong = checked.iter().filter(|checked| !checked.wrong.is_empty()).count();
    let seconds = started.elapsed().as_secs_f64();
    let text = if chaos.json {
        let object = json!({
            "seed": seed, "tried": checked.len(), "wrong": wrong, "seconds_run": seconds, "faults": rows,
            "jobs": checked,
        });
        format!("{object}\n")
    } else {
        table(seed, seconds, &courses, &rows, &checked)
    };
    report::print(&text)?;
    Ok(ExitCode::from(interrupt.code().unwrap_or(u8::from(wrong > 0))))
}

fn described(checked: &Checked, again: &str) -> String {
    let mut text = format!("{}, after {:.2} s: ", checked.plan, checked.seconds);
    text += &if checked.wrong.is_empty() { "nothing wrong".to_owned() } else { checked.wrong.join("; ") };
    checked.said.lines().for_each(|line| text += &format!("\n    {line}"));
    text + &format!("\n  again: {again}")
}

fn table(seed: u64, seconds: f64, courses: &Courses, rows: &[Row], checked: &[Checked]) -> String {
    // Of the fewest workers, and of the most.
    let span = |of: &dyn Fn(&Course) -> f64| -> (f64, f64) {
        let mut all = courses.values().map(of);
        let first = all.next().unwrap_or_default();
        (first, all.next_back().unwrap_or(first))
    };
    let (few, many) = span(&|course| course.whole.as_secs_f64());
    let sizes = courses.keys().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let mut text = format!(
        "{} jobs of {sizes} workers in {seconds:.0} s, seed {seed}; undisturbed, one takes {few:.2} to {many:.2} s\n\n",
        checked.len(),
    );
    text += "part of a worker's life     undisturbed   meant   tries injected\n";
    for phase in Phase::ALL {
        let (few, many) = span(&|course| course.typical(phase).as_secs_f64() * 1e3);
        let of = || checked.iter().filter(|checked| checked.plan.fault.has_moment());
        let meant = || of().filter(|checked| checked.plan.phase == phase);
        let (tries, meant) = (meant().map(|checked| checked.tries).sum::<u32>(), meant().count());
        let injected = of().filter(|checked| checked.injected == Some(phase)).count();
        text += &format!("{phase:24} {few:>4.1} to {many:>5.1} ms {meant:>7} {tries:>7} {injected:>8}\n");
    }
    text.push('\n');
    text += "fault                tried  tries injected  either  in time  failed    named right  digests equal  orphans  wrong\n";
    rows.iter().for_each(|row| text += &line(&row.fault.to_string(), row));
    let all: Vec<&Checked> = checked.iter().collect();
    text + &if all.is_empty() { String::new() } else { line("all", &Row::of(Fault::None, &all)) }
}

fn line(name: &str, row: &Row) -> String {
    let Row { tried, tries, injected, either, in_time, failed, .. } = row;
    let Row { named_right, digests_equal, orphans, wrong, .. } = row;
    format!(
        "{name:20} {tried:>5} {tries:>6} {injected:>8} {either:>7} {in_time:>8} {failed:>7} {named_right:>14} {digests_equal:>14} {orphans:>8} {wrong:>6}\n"
    )
}
