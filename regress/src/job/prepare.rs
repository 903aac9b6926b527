//! What a worker has before its first step: samples, and what all workers agree on about them.

use std::time::Instant;

use gleaner_runtime::agreement::{Disagreement, all_can, expect_same};
use gleaner_runtime::{Failure, Session};

use crate::agreement::gather;
use crate::data::{Held, Part, Samples, Source};
use crate::error::RegressError;
use crate::evaluation::{Evaluation, Score, evaluate};
use crate::scoring;
use crate::settings::{Algorithm, MOST_FEATURES, Settings};

/// A worker's samples, and what of them is the same on every worker.
pub(super) struct Prepared {
    pub(super) samples: Samples,
    /// Each sample's y.
    pub(super) signs: Vec<f32>,
    /// Samples that are held out and this worker's to score, each with its y.
    pub(super) held_out: Option<(Samples, Vec<f32>)>,
    /// Samples of each worker.
    pub(super) held: Vec<u64>,
    /// Samples of all.
    pub(super) all: u64,
    /// Non-zero entries of all.
    pub(super) nonzeros: u64,
    /// The number of features.
    pub(super) features: usize,
    /// The number of weights: with that of a constant entry.
    pub(super) n: usize,
    /// The labels of the negative and the positive class.
    pub(super) classes: Option<[f32; 2]>,
    /// The sum of the squares of all entries of all samples.
    squares: f64,
    /// What loading took on the worker that took longest.
    pub(super) seconds: f64,
}

impl Prepared {
    pub(super) fn of(session: &Session, settings: &Settings) -> Result<Self, RegressError> {
        same_start(session, settings)?;
        let began = Instant::now();
        let (mut train, held_out) = all_can(session, load(session, settings))?;
        let seconds = began.elapsed().as_secs_f64();
        let gathered = Gathered::gather(session, &train, held_out.as_ref(), seconds)?;
        let features = gathered.features(settings)?;
        let shares = matches!(settings.algorithm, Algorithm::Sgd(_));
        let of_all = |numbers: &[u64]| if shares { numbers.iter().sum() } else { numbers[0] };
        let (all, nonzeros) = (of_all(&gathered.samples), of_all(&gathered.nonzeros));
        let workers = session.world_size() as u64;
        if all < workers {
            return Err(RegressError::Data {
                data: settings.data.to_string(),
                expected: format!("at least one sample for each of {workers} workers"),
                found: if all == 0 { "no sample".into() } else { format!("{all}") },
                advice: "bring more samples, or fewer workers",
            });
        }
        if let Some(rank) = gathered.samples.iter().position(|&samples| u32::try_from(samples).is_err()) {
            return Err(RegressError::Data {
                data: settings.data.to_string(),
                expected: format!("at most {} samples on a worker", u32::MAX),
                found: format!("{} on rank {rank}", gathered.samples[rank]),
                advice: "take more workers",
            });
        }
        if let Some(rank) = gathered.samples.iter().position(|&samples| samples == 0)
            && settings.data.is_by_rank()
        {
            return Err(RegressError::Data {
                data: settings.data.to_string(),
                expected: "a sample or more in the file of every rank".into(),
                found: format!("none in that of rank {rank}"),
                advice: "share the samples out among the files, or take fewer workers",
            });
        }
        if gathered.held_out == 0
            && let Some(path) = &settings.held_out
        {
            return Err(RegressError::Data {
                data: path.display().to_string(),
                expected: "a sample or more to evaluate".into(),
                found: "none".into(),
                advice: "give other data that are held out, or none",
            });
        }
        let classes =
            settings.loss.classifies().then(|| classes(session, settings, &train.samples)).transpose()?;
        let signs = signs(train.samples.labels(), classes).unwrap_or_default();
        let held_out = all_can(session, held_out_signs(settings, held_out, classes))?;
        let n = features + usize::from(settings.bias.is_some());
        let mut prepared = Self {
            samples: Samples::default(),
            signs,
            held_out,
            held: gathered.samples,
            all,
            nonzeros,
            features,
            n,
            classes,
            squares: gathered.squares,
            seconds: gathered.seconds,
        };
        if let Some(bias) = settings.bias {
            train.samples.add_constant(features as u32, bias);
            if let Some((samples, _)) = &mut prepared.held_out {
                samples.add_constant(features as u32, bias);
            }
            prepared.squares += f64::from(bias).powi(2) * all as f64;
        }
        prepared.samples = train.samples;
        Ok(prepared)
    }

    /// The learning rate that suits the data: 1/(c·mean ‖x‖² + λ₂) with c the most that the loss's second derivative is, or 1 for the
    /// hinge. The second derivatives of the objective are at most the inverse of it, so gradient descent with all samples in a step
    /// does not diverge.
    pub(super) fn rate(&self, settings: &Settings) -> f64 {
        let curvature = settings.loss.curvature().unwrap_or(1.0);
        let steepest = curvature * self.squares / self.all as f64 + settings.penalty.l2;
        let rate = if steepest > 0.0 { 1.0 / steepest } else { 1.0 };
        // L2 alone does not take all of a weight.
        rate.min((1.0 - 1e-6) / settings.penalty.l2)
    }

    /// Evaluates weights on what is held out.
    pub(super) fn evaluate(
        &self,
        session: &Session,
        settings: &Settings,
        weights: &[f32],
    ) -> Result<Option<Evaluation>, RegressError> {
        let Some((samples, signs)) = &self.held_out else { return Ok(None) };
        let mut all: Vec<Score> =
            scoring::gather(session, scoring::scores(samples, signs, weights))?.concat();
        Ok((!all.is_empty()).then(|| evaluate(settings.loss, &mut all)))
    }
}

/// Makes sure that all workers were started alike, on the same data.
fn same_start(session: &Session, settings: &Settings) -> Result<(), RegressError> {
    let options = [
        ("--features", format!("{:?}", settings.features)),
        ("loss, penalties and bias", format!("{} {:?} {:?}", settings.loss, settings.penalty, settings.bias)),
        ("algorithm", format!("{:?}", settings.algorithm)),
        ("--epochs and --seed", format!("{} and {}", settings.epochs, settings.seed)),
        ("--method", settings.method.to_string()),
        ("--held-out", format!("{}", settings.held_out.is_some())),
    ];
    expect_same(session, &options, "start every worker with the same options")?;
    let held_out = settings.held_out.clone().map(Source::File);
    let identity = || -> Result<_, RegressError> {
        let held_out = held_out.as_ref().map_or(Ok(String::new()), Source::identity)?;
        Ok((settings.data.identity()?, held_out))
    };
    let (data, held_out) = all_can(session, identity())?;
    let files = [("data", data), ("held-out data", held_out)];
    let advice = "give every worker the same file, or with {rank} in its path one of its own";
    Ok(expect_same(session, &files, advice)?)
}

fn load(session: &Session, settings: &Settings) -> Result<(Held, Option<Held>), RegressError> {
    let part = Part { rank: session.rank(), of: session.world_size() };
    let own = match &settings.algorithm {
        Algorithm::Sgd(_) => part,
        Algorithm::Scd { .. } if settings.data.is_by_rank() => {
            return Err(RegressError::Setting {
                option: "--data",
                expected: "one file for all workers, as coordinate descent needs all samples on each".into(),
                found: settings.data.to_string(),
            });
        }
        Algorithm::Scd { .. } => Part::WHOLE,
    };
    let most = match (&settings.data, settings.features) {
        (_, Some(features)) => features,
        (Source::Generated { shape, .. }, None) => shape.features(),
        (Source::File(_), None) => MOST_FEATURES,
    };
    let train = settings.data.load(own, most, settings.seed)?;
    let held_out = settings.held_out.clone().map(|path| Source::File(path).load(part, most, settings.seed));
    Ok((train, held_out.transpose()?))
}

/// What is known of all workers' samples, by rank.
struct Gathered {
    samples: Vec<u64>,
    nonzeros: Vec<u64>,
    highest: Vec<u64>,
    highest_held_out: u64,
    /// Samples that are held out, of all.
    held_out: u64,
    squares: f64,
    seconds: f64,
}

impl Gathered {
    fn gather(
        session: &Session,
        train: &Held,
        held_out: Option<&Held>,
        seconds: f64,
    ) -> Result<Self, RegressError> {
        let samples = &train.samples;
        let squares: f64 =
            samples.rows().flat_map(|row| row.values).map(|&x| f64::from(x) * f64::from(x)).sum();
        let own = [
            samples.len() as f64,
            samples.nonzeros() as f64,
            train.highest.into(),
            held_out.map_or(0.0, |held| held.highest.into()),
            squares,
            seconds,
            held_out.map_or(0.0, |held| held.samples.len() as f64),
        ];
        let gathered = gather(session, &own)?;
        let whole = |at: usize| gathered.iter().map(|gathered| gathered[at] as u64).collect::<Vec<u64>>();
        Ok(Self {
            samples: whole(0),
            nonzeros: whole(1),
            highest: whole(2),
            highest_held_out: whole(3).into_iter().max().unwrap_or(0),
            held_out: whole(6).into_iter().sum(),
            squares: gathered.iter().map(|gathered| gathered[4]).sum(),
            seconds: gathered.iter().map(|gathered| gathered[5]).fold(0.0, f64::max),
        })
    }

    /// The number of features: as it was asked for, or the highest index there is.
    fn features(&self, settings: &Settings) -> Result<usize, RegressError> {
        if let Some(features) = settings.features {
            return Ok(features);
        }
        let first = self.highest[0];
        let other = (0..).zip(&self.highest).find(|(_, highest)| **highest != first);
        if let Some((rank, other)) = other.filter(|_| settings.data.is_by_rank()) {
            let reason = format!(
                "expected the same number of features on every worker, found indices up to {first} on rank 0 and up to {other} on rank {rank}; \
                 make files with the same features, or say by --features how many there are"
            );
            return Err(Disagreement::Differ(Failure { rank, step: None, reason }).into());
        }
        let highest = self.highest.iter().copied().max().unwrap_or(0).max(self.highest_held_out);
        if highest == 0 && self.samples.iter().any(|&samples| samples > 0) {
            return Err(RegressError::Data {
                data: settings.data.to_string(),
                expected: "at least one feature".into(),
                found: "labels alone".into(),
                advice: "give data with features, or say by --features how many there are",
            });
        }
        Ok(highest as usize)
    }
}

/// The two labels of all workers' samples, the lower one first.
fn classes(session: &Session, settings: &Settings, samples: &Samples) -> Result<[f32; 2], RegressError> {
    let own = distinct(samples.labels().iter().copied());
    let note: Vec<u8> = own.iter().flat_map(|label| label.to_le_bytes()).collect();
    let notes = session.all_gather(&note)?;
    let labels = notes.iter().flat_map(|note| note.as_chunks::<4>().0).map(|&word| f32::from_le_bytes(word));
    let all = distinct(labels);
    match all[..] {
        [negative, positive] => Ok([negative, positive]),
        _ => Err(RegressError::Data {
            data: settings.data.to_string(),
            expected: format!("labels of two classes for --loss-function {}", settings.loss),
            found: match all.len() {
                1 => format!("{} alone", all[0]),
                SHOWN => format!("{} and perhaps more", listed(&all)),
                _ => listed(&all),
            },
            advice: "give data of two classes, or take --loss-function squares for numbers",
        }),
    }
}

/// Labels that a sentence names, at most.
const SHOWN: usize = 5;

/// The first different ones, ascending.
fn distinct(labels: impl Iterator<Item = f32>) -> Vec<f32> {
    let mut found = Vec::with_capacity(SHOWN);
    for label in labels {
        if found.len() < SHOWN && !found.contains(&label) {
            found.push(label);
        }
    }
    found.sort_by(f32::total_cmp);
    found
}

fn listed(labels: &[f32]) -> String {
    labels.iter().map(f32::to_string).collect::<Vec<String>>().join(", ")
}

/// Each label's y: 1 for the positive class and −1 for the other, or without classes the label. None where one is of neither class.
pub(crate) fn signs(labels: &[f32], classes: Option<[f32; 2]>) -> Result<Vec<f32>, f32> {
    let Some([negative, positive]) = classes else { return Ok(labels.to_vec()) };
    let sign = |&label: &f32| match label {
        label if label == positive => Ok(1.0),
        label if label == negative => Ok(-1.0),
        label => Err(label),
    };
    labels.iter().map(sign).collect()
}

fn held_out_signs(
    settings: &Settings,
    held: Option<Held>,
    classes: Option<[f32; 2]>,
) -> Result<Option<(Samples, Vec<f32>)>, RegressError> {
    let Some(Held { samples, .. }) = held else { return Ok(None) };
    match signs(samples.labels(), classes) {
        Ok(signs) => Ok(Some((samples, signs))),
        Err(label) => Err(RegressError::Data {
            data: settings.held_out.as_ref().map_or(String::new(), |path| path.display().to_string()),
            expected: format!("the labels of the training data, {}", listed(&classes.unwrap_or_default())),
            found: label.to_string(),
            advice: "give held-out data of the same classes",
        }),
    }
}
