//! `gleaner regress`: linear models on sparse data.

mod arguments;
mod summary;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use gleaner_regress::data::{Samples, Source};
use gleaner_regress::settings::Settings;
use gleaner_regress::{Epoch, Predicted, RegressError, predict, train};
use gleaner_runtime::{Config, Roles, Session};
use gleaner_units as units;

use crate::crew::{self, Display, Progress};
use crate::report::{self, CommandError};

pub use arguments::Regress;
use summary::{PredictionSummary, Summary};

/// Runs the command, as a worker or as the launcher of workers; gives the exit code.
pub fn run(arguments: &Regress) -> Result<ExitCode, CommandError> {
    let settings = arguments.settings().map_err(report::refused)?;
    if let Some(path) = &arguments.generate {
        generate(arguments, &settings, path)?;
        return Ok(ExitCode::SUCCESS);
    }
    // One worker needs no launcher.
    let is_alone = arguments.workers == 1 && !Config::is_worker();
    if !is_alone
        && let Some(code) = crew::assemble(arguments.workers, Roles::default(), "regress", arguments.timeout)?
    {
        return Ok(code);
    }
    let session = Session::join()?;
    let done = match &arguments.predict {
        Some(model) => apply(&session, arguments, model),
        None => learn(&session, arguments, &settings),
    };
    match done {
        Ok(None) => {}
        Ok(Some((text, ended))) => {
            report::print(&text)?;
            ended?;
        }
        Err(error) => {
            // All ranks are to know why; of some failures they do.
            match error.downcast_ref().and_then(RegressError::of_all) {
                Some(failure) => _ = gleaner_runtime::report::failed(&failure),
                None => drop(session.abort(&error)),
            }
            return Err(error);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What is printed at the end, and why the command fails nevertheless, where it does.
type Printout = (String, Result<(), CommandError>);

/// Trains; rank 0 writes the model, and gets what is to be printed.
fn learn(
    session: &Session,
    arguments: &Regress,
    settings: &Settings,
) -> Result<Option<Printout>, CommandError> {
    let is_first = session.rank() == 0;
    for file in [&arguments.model, &arguments.liblinear].into_iter().flatten().filter(|_| is_first) {
        report::probe(file)?;
    }
    let display = is_first.then(Display::new);
    let mut shown = Instant::now();
    let trained = train(session, settings, |done, of, epoch| {
        // Drawing takes longer than a step may.
        if let Some(display) = display.as_ref().filter(|_| shown.elapsed().as_millis() > 100 || done == of) {
            shown = Instant::now();
            display.show(&Progress { done, of, note: epoch.map_or(String::new(), note) });
        }
    })?;
    drop(display);
    if !is_first {
        return Ok(None);
    }
    if let Some(path) = &arguments.model {
        report::write(path, |file| file.write_all(&trained.model.to_bytes()?))?;
    }
    if let Some(path) = &arguments.liblinear {
        report::write(path, |file| trained.model.write_liblinear(file))?;
    }
    let summary = Summary::of(settings, session.world_size(), trained);
    let text = if arguments.json { report::json(&summary) } else { summary.table() };
    Ok(Some((text, summary.converged())))
}

/// What is said of an epoch beside the bar.
fn note(epoch: &Epoch) -> String {
    let loss = epoch.objective.or(epoch.training_loss).unwrap_or_default();
    let held_out =
        epoch.held_out.map_or(String::new(), |held_out| format!(", held-out {:.4}", held_out.loss));
    let received = units::bytes(epoch.bytes_received as f64);
    let Epoch { epoch, seconds, communication_seconds, .. } = epoch;
    format!(
        "epoch {epoch}: loss {loss:.4}{held_out}, {seconds:.2} s ({communication_seconds:.2} s exchanging), {received}"
    )
}

/// Applies a model; rank 0 writes the predictions, and gets what is to be printed.
fn apply(session: &Session, arguments: &Regress, model: &Path) -> Result<Option<Printout>, CommandError> {
    let is_first = session.rank() == 0;
    if let Some(out) = arguments.out.as_deref().filter(|_| is_first) {
        report::probe(out)?;
    }
    let Source::File(data) = arguments.source()? else {
        let expected = "a LIBSVM file beside --predict";
        return Err(report::refused(RegressError::setting("--data", expected, &arguments.data)));
    };
    let began = Instant::now();
    let (model, predicted) = predict(session, model, &data, arguments.features)?;
    let seconds = began.elapsed().as_secs_f64();
    if !is_first {
        return Ok(None);
    }
    if let Some(path) = &arguments.out {
        report::write(path, |file| predicted.write(&model, file))?;
    }
    let Predicted { margins, evaluation } = predicted;
    let summary = PredictionSummary::new(&model, margins.len(), evaluation, seconds);
    let text = if arguments.json { report::json(&summary) } else { summary.table() };
    Ok(Some((text, Ok(()))))
}

fn generate(arguments: &Regress, settings: &Settings, path: &Path) -> Result<(), CommandError> {
    let Source::Generated { shape, samples: count } = settings.data else {
        let expected = "url or webspam beside --generate";
        return Err(report::refused(RegressError::setting("--data", expected, &arguments.data)));
    };
    let features = settings.features.unwrap_or(shape.features());
    let bar = crew::bar(count);
    bar.set_message("samples written");
    let (mut one, mut shown) = (Samples::default(), Instant::now());
    report::write(path, |file| {
        for number in 0..count {
            one.clear();
            shape.sample(settings.seed, number, features, &mut one);
            let row = one.row(0);
            write!(file, "{:+}", row.label)?;
            row.iter().try_for_each(|(index, value)| write!(file, " {}:{value}", index + 1))?;
            writeln!(file)?;
            if shown.elapsed().as_millis() > 100 {
                shown = Instant::now();
                bar.set_position(number + 1);
            }
        }
        Ok(())
    })?;
    bar.finish_and_clear();
    Ok(())
}
