//! Steps of any other synchrony, and all that go over parameter servers: gradients go into a replica when the backward pass is over.

use std::path::Path;
use std::time::Instant;

use candle_core::Tensor;
use gleaner_candle::with_values;
use gleaner_runtime::report::say;
use gleaner_runtime::{Options, Pass, Replica, Session, StepTimes};

use super::units::{Units, units};
use super::{BUFFERS, Ended, Exchange, Passed, Share, Words};
use crate::train::checkpoint::Checkpoints;
use crate::train::error::TrainResult;
use crate::train::settings::Settings;
use crate::train::summary::Account;
use gleaner_trainer::parameters::{Parameter, Parameters};

pub struct Replicated {
    replica: Replica,
    clip: Option<f32>,
    samples: u64,
    units: Units,
    /// Whether servers keep their state.
    is_kept: bool,
}

impl Replicated {
    /// Each layer is a unit of its own. The replica weighs gradients by samples.
    pub fn new(
        session: &Session,
        settings: &Settings,
        parameters: &mut Parameters,
        Share { samples, epoch, .. }: Share,
    ) -> TrainResult<Self> {
        settings.expect_replica()?;
        if let Some(note) = usual_momentum(settings, session.servers()).filter(|_| session.rank() == 0) {
            say(format_args!("gleaner: {note}"));
        }
        let units = units(parameters, &settings.method, settings.synchrony.osp().is_some());
        let initial = parameters.list.iter().map(Parameter::values).collect::<Result<Vec<_>, _>>()?.concat();
        let options = Options {
            method: settings.method.clone(),
            synchrony: settings.synchrony.clone(),
            sgd: settings.sgd(),
            samples,
            epoch,
        };
        let resume = settings.options.resume;
        let kept = settings.options.checkpoint.as_ref().filter(|_| session.servers() > 0);
        let replica = match kept {
            Some(directory) => {
                let directory = Checkpoints::of_servers(directory);
                session.durable_replica(&units.layout, &initial, options, directory, resume)?
            }
            None => session.replica(&units.layout, &initial, options)?,
        };
        let replicated = Self { replica, clip: settings.clip, samples, units, is_kept: kept.is_some() };
        // Servers that go on from a checkpoint have other values.
        replicated.hand_on(parameters)?;
        Ok(replicated)
    }

    /// The parameters get the values of the next pass.
    fn hand_on(&self, parameters: &mut Parameters) -> TrainResult<()> {
        let mut rest = self.replica.parameters();
        for parameter in &mut parameters.list {
            let (values, others) = rest.split_at(parameter.count());
            parameter.update(|into| into.copy_from_slice(values))?;
            rest = others;
        }
        Ok(())
    }
}

/// That a momentum takes entries which have waited for new ones, if one does.
fn usual_momentum(settings: &Settings, servers: usize) -> Option<String> {
    // Of local steps differences wait: a worker's own momentum is of gradients that come at once, and the outer one of differences.
    let (whose, momentum, measured) = match settings.synchrony.local() {
        Some(local) => ("the outer momentum", local.momentum, ""),
        None => {
            let measured = "; over an all-reduce a perceptron trained better with 0.5 and five times the rate than with 0.9";
            ("momentum", settings.momentum, measured)
        }
    };
    let beside = match servers {
        0 => format!("under {}", settings.synchrony.name()),
        _ => "with parameter servers".into(),
    };
    let note = || {
        format!(
            "{beside} {whose} {momentum} does not count how long entries have waited in the residuals, and takes them for new ones{measured}"
        )
    };
    (momentum > 0.0 && settings.method.collective().is_sparse()).then(note)
}

impl Exchange for Replicated {
    fn backward(
        &mut self,
        loss: &Tensor,
        parameters: &Parameters,
        _rate: f32,
        _keeps: bool,
    ) -> TrainResult<()> {
        let mut gradient = loss.backward()?;
        if let Some(largest) = self.clip {
            parameters.clip(&mut gradient, largest)?;
        }
        for (parameter, pieces) in parameters.list.iter().zip(&self.units.pieces) {
            let replica = &mut self.replica;
            let mut ready = |values: &[f32]| {
                pieces.iter().try_for_each(|(name, piece)| replica.ready(name, &values[piece.clone()]))
            };
            match gradient.get(parameter.variable()) {
                Some(gradient) => with_values(gradient, ready)??,
                None => ready(&vec![0.0; parameter.count()])?,
            }
        }
        Ok(())
    }

    fn end_step(
        &mut self,
        parameters: &mut Parameters,
        Passed { rate, loss, .. }: Passed,
    ) -> TrainResult<Ended> {
        let stepped = self.replica.step(Pass { rate, samples: self.samples, loss })?;
        let came = Instant::now();
        self.hand_on(parameters)?;
        let (waiting, under_way) = (stepped.waiting, stepped.waiting + stepped.background);
        let times = StepTimes { exchange: under_way, under_way, waiting, ..StepTimes::default() };
        Ok(Ended { came, times, stepped })
    }

    fn flush(&mut self, parameters: &mut Parameters) -> TrainResult<()> {
        self.replica.flush()?;
        self.hand_on(parameters)
    }

    fn bytes_received(&self) -> u64 {
        self.replica.bytes_received()
    }

    fn account(&self) -> Account {
        Account { merge: "layer-wise", groups: self.units.count, ..Account::default() }
    }

    fn save(&mut self, path: &Path, parameters: &Parameters, words: &[(&str, String)]) -> TrainResult<()> {
        Ok(self.replica.save_with(path, &[(BUFFERS, &parameters.buffer_values()?[..])], words)?)
    }

    fn load(
        &mut self,
        path: &Path,
        parameters: &mut Parameters,
        words: &[(&str, String)],
    ) -> TrainResult<Words> {
        let mut buffers = parameters.buffer_values()?;
        let words = self.replica.load_with(path, &mut [(BUFFERS, &mut buffers[..])], words)?;
        parameters.set_buffer_values(&buffers)?;
        self.hand_on(parameters)?;
        Ok(words)
    }

    fn kept(&self) -> Option<u64> {
        self.is_kept.then(|| self.replica.step_number())
    }
}
