//! `gleaner testbed run`: an experiment from a file.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser};
use gleaner_runtime::report::say;
use gleaner_testbed::experiment::{Case, Experiment, Job, Options, Plan, Progress, Tally, UNKNOWN, plain};
use gleaner_testbed::peers::Kit;
use gleaner_testbed::report::summary;
use gleaner_testbed::topology;
use indicatif::{HumanDuration, ProgressBar};
use serde_json::json;

use crate::Command;
use crate::crew;
use crate::report::{self, CommandError};

const EXAMPLES: &str = "\
Examples:
  gleaner testbed run experiments/first.toml                 (measurements go to runs/first)
  gleaner testbed run experiments/first.toml --dry-run       (only says which jobs there are)
  gleaner testbed run experiments/first.toml --out /data/1 --resume
  gleaner testbed report runs/first

Ctrl-C ends the run, leaves no emulated host behind and keeps what was measured; --resume goes on. The exit code is 0 if
every job ended well or failed on purpose, 1 if one failed, 130 after Ctrl-C and 143 after SIGTERM.";

/// Run an experiment from a file
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Run {
    /// The experiment's file
    file: PathBuf,
    /// Where measurements go [default: runs/ and the file's name]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Go on with what is in that directory: what it has is not measured again
    #[arg(long)]
    resume: bool,
    /// Take down an emulated network of that name first, left behind by a run that was killed
    #[arg(long)]
    replace: bool,
    /// What the emulated network is called; runs at the same time need different names
    #[arg(long, default_value = "run", value_parser = topology::name)]
    name: String,
    /// A Python that has PyTorch with Gloo, PySpark or vowpalwabbit, for experiments with methods of these
    #[arg(long, value_name = "FILE", default_value = "/usr/bin/python3")]
    python: PathBuf,
    /// Print the jobs in their order, and run none
    #[arg(long)]
    dry_run: bool,
    /// End standard output with one JSON object: out, measured, before, failed, reasons, failed_on_purpose,
    /// missed, bound_by_processors, interrupted
    #[arg(long)]
    json: bool,
}

pub fn run(run: &Run) -> Result<ExitCode, CommandError> {
    let experiment = Experiment::read(&run.file)?;
    let program =
        std::env::current_exe().map_err(|e| format!("the path of this program is not known: {e}"))?;
    let peers = experiment.jobs.iter().flatten().filter(|case| case.is_of_peer());
    let peers: BTreeSet<String> = peers.map(Case::method).collect();
    let kit = (!peers.is_empty()).then(|| Kit::make(&run.python, peers)).transpose()?;
    for (name, reason) in kit.iter().flat_map(|kit| &kit.missing) {
        say(format_args!("gleaner testbed: {name} is not measured: {reason}"));
    }
    let plan = Plan::of(experiment, &program, kit.as_ref());
    let is_ours = |job: &&Job| job.again.is_none() && !job.cases.iter().any(Case::runs_program);
    plan.jobs.iter().filter(is_ours).try_for_each(|job| check(job, &plan))?;
    if run.dry_run {
        report::print(&listed(&plan))?;
        return Ok(ExitCode::SUCCESS);
    }
    say(format_args!("gleaner testbed: {}", plan.experiment.title));
    let out = run.out.clone().unwrap_or_else(|| PathBuf::from("runs").join(&plan.experiment.name));
    let options = Options { out, resume: run.resume, replace: run.replace, network: run.name.clone() };
    measure(&plan, &options, run.json)
}

/// Checks a job's command line as the command itself will, before anything is started.
fn check(job: &Job, plan: &Plan) -> Result<(), String> {
    let mut job = job.clone();
    if let Some(search) = &plan.experiment.search {
        // Any number of the range stands for the one that will be found.
        let number =
            |word: &OsString| word.to_string_lossy().replace(UNKNOWN, &search.from.to_string()).into();
        job.program = job.program.iter().map(number).collect();
    }
    let typed =
        || job.program.iter().skip(1).map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let checked = match Command::try_parse_from(&job.program) {
        Ok(Command::Bench(bench)) => bench.check(job.workers()).map_err(|error| error.to_string()),
        #[cfg(feature = "train")]
        Ok(Command::Train(arguments)) => arguments.settings().map(drop).map_err(|error| error.to_string()),
        Ok(Command::Regress(arguments)) => arguments.settings().map(drop).map_err(|error| error.to_string()),
        Ok(_) => Err("this is no measurement".into()),
        Err(_) if !cfg!(feature = "train") && typed().starts_with("train") => {
            Err("this gleaner was built without its trainer; build it with the feature train".into())
        }
        Err(error) => Err(error.to_string().lines().next().unwrap_or_default().to_owned()),
    };
    checked.map_err(|reason| {
        format!("a case cannot be run: gleaner {} with {} workers: {reason}", typed(), job.workers())
    })
}

/// Runs a plan with a bar, and prints a summary.
fn measure(plan: &Plan, options: &Options, json: bool) -> Result<ExitCode, CommandError> {
    let bar = crew::bar(0);
    let tally = plan.run(options, |progress| draw(&bar, progress));
    bar.finish_and_clear();
    let tally = tally?;
    print_tally(&tally, options);
    if json {
        let summary = json!({
            "out": options.out,
            "measured": tally.measured,
            "before": tally.before,
            "failed": tally.failed.len(),
            "reasons": tally.failed,
            "failed_on_purpose": tally.failed_on_purpose,
            "missed": tally.missed,
            "bound_by_processors": tally.bound_by_processors,
            "interrupted": tally.interrupted,
        });
        report::print(&format!("{summary}\n"))?;
    }
    let failed = u8::from(!tally.failed.is_empty());
    Ok(ExitCode::from(tally.interrupted.unwrap_or(failed)))
}

fn draw(bar: &ProgressBar, progress: &Progress) {
    let Progress { done, of, job, steps, rest } = progress;
    bar.set_length(*of as u64);
    bar.set_position(*done as u64);
    let steps = if steps.1 > 0 { format!(", {} of {} steps", steps.0, steps.1) } else { String::new() };
    let rest = rest.map_or_else(String::new, |rest| format!(", about {} left", HumanDuration(rest)));
    bar.set_message(format!("{job}{steps}{rest}"));
}

/// On standard error, since standard output is for what was asked for.
fn print_tally(tally: &Tally, options: &Options) {
    let out = options.out.display();
    if tally.torn {
        say("gleaner testbed: the last line of an earlier run was torn; it is measured again");
    }
    let before =
        if tally.before > 0 { format!(" ({} were there before)", tally.before) } else { String::new() };
    say(format_args!("gleaner testbed: {} measurements written to {out}{before}", tally.measured));
    if tally.failed_on_purpose > 0 {
        say(format_args!(
            "gleaner testbed: {} of them failed as the chaos of the file asked for",
            tally.failed_on_purpose
        ));
    }
    if tally.missed > 0 {
        say(format_args!(
            "gleaner testbed: in {} of them something that the file plans on purpose did not happen; the report says what: give the \
             job more steps, or the event an earlier moment",
            tally.missed
        ));
    }
    if tally.bound_by_processors > 0 {
        say(format_args!(
            "gleaner testbed: {} measurements are of the processors and not of the links: the relay brought more than 1% of the \
             frames late, or the processors were busy for more than 90% of the time; reports leave them out; use slower links or \
             fewer hosts",
            tally.bound_by_processors
        ));
    }
    for reason in &tally.failed {
        say(format_args!("gleaner testbed: failed: {reason}"));
    }
    if tally.interrupted.is_some() {
        say("gleaner testbed: interrupted; --resume goes on");
    }
}

/// What the experiment is for, and every job on a line, as one would type it.
fn listed(plan: &Plan) -> String {
    let line = |(turn, job): (u32, &Job)| {
        let link = ["bandwidth", "link_latency", "jitter", "loss", "congestion", "transport", "sockets"].map(
            |key| job.cases.first().and_then(|case| Some(format!(" {key} {}", plain(case.0.get(key)?)))),
        );
        let link: String = link.into_iter().flatten().collect();
        format!("turn {turn}, {} workers{link}: {}\n", job.workers(), summary::typed(&plan.typed(job)))
    };
    let comment = |text: &str| text.trim().lines().map(|line| format!("# {line}\n")).collect::<String>();
    comment(&plan.experiment.title)
        + &comment(&plan.experiment.description)
        + &plan.sequence().map(line).collect::<String>()
}
