//! The command.

mod train;

use clap::Parser;

/// TEMPORARY: tries the trainer with a single worker.
#[derive(Parser)]
enum Command {
    /// Train.
    Train(train::TrainArgs),
}

fn main() {
    let Command::Train(args) = Command::parse();
    let mut last = 0;
    let report = |progress: train::Progress| {
        if progress.step >= last + progress.steps / 20 || progress.step == progress.steps {
            last = progress.step;
            eprintln!("{progress:?}");
        }
    };
    match train::worker(&args, report) {
        Ok(summary) => println!("{}", serde_json::to_string(&summary).unwrap_or_default()),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    }
}
