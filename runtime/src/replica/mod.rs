//! What a trainer holds where the synchrony is chosen: parameters that workers have in common, up to the staleness that the synchrony allows.

pub(crate) mod carrier;
mod local;
mod options;
mod osp;
mod plain;
mod reduced;
mod saving;
mod splitter;

use std::collections::HashMap;
use std::fmt::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use gleaner_algorithms::residual::{OnNonFinite, norm};
use sha2::{Digest, Sha256};

use crate::auto;
use crate::checkpoint::{CheckpointError, State};
use crate::failure::{Error, Failure};
use crate::gradients::describe;
use crate::layout::{Layout, LayoutError};
use crate::notes::Purpose;
use crate::server::Served;
use crate::session::{Inner, Session};
use crate::timeline::SYNCHRONISE;
use crate::waits::Awaited;

pub use options::{Options, Pass, ReplicaError, Stepped};

use carrier::{Carrier, Turn};
use local::Local;
use osp::TwoStages;
use plain::Plain;
use reduced::Reduced;
use splitter::Splitter;

/// A worker's parameters, which its passes change together with those of the other workers.
///
/// ```
/// use std::sync::Arc;
///
/// use gleaner_algorithms::{Method, synchrony};
/// use gleaner_algorithms::synchrony::Sgd;
/// use gleaner_runtime::{Layout, Options, Pass, Session};
///
/// let session = Session::join()?;
/// let layout = Layout::new().parameter("weights", 2).group().parameter("bias", 1);
/// let options = Options {
///     method: Method::ring(),
///     synchrony: Arc::from(synchrony::named("bsp")?),
///     sgd: Sgd { momentum: 0.5, ..Sgd::default() },
///     samples: 16,
///     epoch: 100,
/// };
/// let mut replica = session.replica(&layout, &[1.0, 2.0, 3.0], options)?;
/// for _step in 0..2 {
///     // A pass with replica.parameters() gives the gradients.
///     replica.ready("weights", &[1.0, 0.0])?;
///     replica.ready("bias", &[-2.0])?;
///     replica.step(Pass { rate: 0.5, samples: 16, loss: 0.25 })?;
/// }
/// replica.flush()?;
/// // The second step moves by half as much more, since half of the first velocity is left.
/// assert_eq!(replica.parameters(), [1.0 - 0.5 - 0.75, 2.0, 3.0 + 1.0 + 1.5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Replica {
    session: Arc<Inner>,
    options: Options,
    /// Where each parameter is among all entries.
    places: HashMap<String, usize>,
    names: Vec<(String, Range<usize>)>,
    carrier: Box<dyn Carrier>,
    driver: Box<dyn Driver>,
    parameters: Vec<f32>,
    gradient: Vec<f32>,
    /// Parameters that are ready in this pass, and how many.
    ready: Vec<bool>,
    given: usize,
    step: u64,
    run: String,
    /// When the current pass began: when the step before it was over.
    since: Instant,
}

/// How steps run their stages.
trait Driver: Send {
    /// Exchanges a gradient. Afterwards `parameters` are those of the next pass.
    fn step(
        &mut self,
        carrier: &mut dyn Carrier,
        gradient: &mut [f32],
        parameters: &mut [f32],
        turn: &Turn,
    ) -> Result<Stepped, Error>;

    /// Completes all exchanges under way. All workers call it together. `room` has as many entries as the parameters.
    fn flush(
        &mut self,
        carrier: &mut dyn Carrier,
        room: &mut [f32],
        parameters: &mut [f32],
    ) -> Result<(), Error>;

    /// Adds what it carries from step to step, once the carrier has.
    fn save(&self, state: &mut State);

    /// Resumes from what was saved.
    fn load(&mut self, state: &State) -> Result<(), CheckpointError>;

    /// Resumes after this many exchanges from these true values, with no exchange under way. Returns the number of the next step.
    fn begin(&mut self, exchanges: u64, values: &[f32]) -> u64;
}

impl Session {
    /// Agrees with all ranks on parameters, with which values they start, and how they change. Each group of the layout is a unit: it
    /// is exchanged by itself, and may travel at another time than the others.
    ///
    /// # Errors
    /// Ranks whose layout, starting values or options differ; a synchrony that needs servers in a job without; options that do not go together.
    pub fn replica(&self, layout: &Layout, initial: &[f32], options: Options) -> Result<Replica, Error> {
        let channel = self.channels.fetch_add(1, Ordering::Relaxed);
        Replica::new(self.inner.clone(), channel, layout, initial, options, None)
    }

    /// The same where parameter servers keep all that they have applied in a directory, which each of them finds under this path. When it
    /// `resumes`, the replica resumes from the state there, at the [step](Replica::step_number) that comes next, and nothing that was applied is lost; there may
    /// be another number of servers than before. Otherwise it begins again, in place of what lies there.
    ///
    /// # Errors
    /// As [`replica`](Self::replica), and no servers, or a directory that cannot be used.
    pub fn durable_replica(
        &self,
        layout: &Layout,
        initial: &[f32],
        options: Options,
        directory: impl AsRef<Path>,
        resumes: bool,
    ) -> Result<Replica, Error> {
        if self.servers() == 0 {
            return Err(ReplicaError::NoServers(options.synchrony.name()).into());
        }
        let channel = self.channels.fetch_add(1, Ordering::Relaxed);
        let kept = Some((directory.as_ref(), resumes));
        Replica::new(self.inner.clone(), channel, layout, initial, options, kept)
    }
}

impl Replica {
    fn new(
        session: Arc<Inner>,
        channel: u64,
        layout: &Layout,
        initial: &[f32],
        mut options: Options,
        kept: Option<(&Path, bool)>,
    ) -> Result<Self, Error> {
        let places = layout.by_name()?;
        if initial.len() != layout.entries() {
            return Err(ReplicaError::Initial { expected: layout.entries(), found: initial.len() }.into());
        }
        if let Some(sparse) = layout.parameters.iter().find(|p| p.is_sparse) {
            return Err(ReplicaError::Sparse(sparse.name.clone()).into());
        }
        options.check()?;
        let synchrony = options.synchrony.name();
        let has_servers = session.role_map.roles.servers > 0;
        if options.synchrony.needs_servers() && !has_servers {
            return Err(ReplicaError::NoServers(synchrony).into());
        }
        session.agree(Purpose::Replica, &lines(layout, initial, &options))?;
        let weight = weight(&session, options.samples)?;
        if options.method.is_auto() {
            options.method = auto::cheapest(&session, "the replica", &options.method, layout.entries(), Ok)?;
        }
        let units = layout.ranges();
        let (mut sgd, mut splitter) = (options.sgd, None);
        let driver: Box<dyn Driver> = if let Some(&local) = options.synchrony.local() {
            sgd = local.outer();
            Box::new(Local::new(local, options.sgd, units.len(), initial))
        } else if let Some(&osp) = options.synchrony.osp() {
            let entries = units.iter().map(Range::len).collect();
            if !has_servers {
                splitter = Some(Splitter::new(&session, osp, &options.method, entries, options.epoch)?);
            }
            Box::new(TwoStages::new(&session, &osp, sgd, units, initial))
        } else {
            Box::new(Plain::new(units.len()))
        };
        let carrier: Box<dyn Carrier> = if has_servers {
            let kept = kept.map(|(directory, resumes)| (directory.to_owned(), resumes));
            Box::new(Served::new(&session, layout, initial, &options, sgd, kept)?)
        } else {
            let rules = (&options.method, sgd);
            Box::new(Reduced::new(&session, channel, layout, rules, initial, weight, splitter)?)
        };
        // From here on any rank may send.
        let run = session.agree_and_draw(Purpose::Replica, "ready")?;
        let mut end = 0;
        let names: Vec<(String, Range<usize>)> = layout
            .parameters
            .iter()
            .map(|p| {
                let start = end;
                end += p.len;
                (p.name.clone(), start..end)
            })
            .collect();
        let mut replica = Self {
            session,
            options,
            places,
            ready: vec![false; names.len()],
            names,
            carrier,
            driver,
            parameters: initial.to_vec(),
            gradient: vec![0.0; initial.len()],
            given: 0,
            step: 0,
            run,
            since: Instant::now(),
        };
        replica.go_on_from_servers()?;
        Ok(replica)
    }

    /// The values that the next pass uses, one parameter after the other in the order of the layout.
    pub fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    /// The values of one parameter that the next pass uses.
    ///
    /// # Errors
    /// An unknown name.
    pub fn values(&self, parameter: &str) -> Result<&[f32], LayoutError> {
        let position = *self.places.get(parameter).ok_or_else(|| LayoutError::Unknown(parameter.into()))?;
        Ok(&self.parameters[self.names[position].1.clone()])
    }

    /// The gradient of one parameter is ready. It is copied.
    ///
    /// # Errors
    /// A parameter that the layout does not have or that was given before in this pass, another length, a job that has failed.
    pub fn ready(&mut self, parameter: &str, gradient: &[f32]) -> Result<(), Error> {
        self.alive()?;
        let position = *self.places.get(parameter).ok_or_else(|| LayoutError::Unknown(parameter.into()))?;
        let (name, range) = &self.names[position];
        if gradient.len() != range.len() {
            let (name, expected, found) = (name.clone(), range.len(), gradient.len());
            return Err(LayoutError::Length { name, expected, found }.into());
        }
        if std::mem::replace(&mut self.ready[position], true) {
            return Err(LayoutError::Again(name.clone()).into());
        }
        self.given += 1;
        self.gradient[range.clone()].copy_from_slice(gradient);
        Ok(())
    }

    /// Ends a pass: exchanges as the synchrony says. Afterwards [`parameters`](Self::parameters) are those of the next pass.
    ///
    /// # Errors
    /// Parameters whose gradients are missing, another number of samples than was agreed on, NaN or infinite entries (the job then
    /// fails on all workers, unless the method [skips](gleaner_algorithms::Method::on_nonfinite) such steps), a job that has failed.
    /// [`parameters`](Self::parameters) are those of the pass before then.
    pub fn step(&mut self, pass: Pass) -> Result<Stepped, Error> {
        let began = Instant::now();
        self.alive()?;
        if self.given < self.ready.len() {
            return Err(ReplicaError::Missing(self.missing()).into());
        }
        if pass.samples != self.options.samples {
            let (expected, found) = (self.options.samples, pass.samples);
            return Err(ReplicaError::Samples { expected, found }.into());
        }
        self.ready.fill(false);
        self.given = 0;
        let turn = Turn { step: self.step, pass, computing: began - self.since };
        self.correct();
        let carrier = &mut *self.carrier;
        let stepped = self.driver.step(carrier, &mut self.gradient, &mut self.parameters, &turn)?;
        self.session.recorder.program(self.step, SYNCHRONISE, began..Instant::now());
        if let Awaited::Rank(rank) = stepped.awaited {
            self.session.recorder.awaited(self.step, rank);
        }
        self.step += 1;
        self.since = Instant::now();
        Ok(Stepped { waiting: self.since - began, computing: turn.computing, ..stepped })
    }

    /// Completes all exchanges under way: afterwards the [parameters](Self::parameters) have the same bits on all workers. All call it
    /// together, after the same number of steps.
    ///
    /// # Errors
    /// A call in the middle of a pass, or a job that has failed.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.between_passes("flush()")?;
        self.driver.flush(&mut *self.carrier, &mut self.gradient, &mut self.parameters)?;
        self.since = Instant::now();
        Ok(())
    }

    /// The number of the current step, from 0.
    pub fn step_number(&self) -> u64 {
        self.step
    }

    /// Bytes that this worker received so far, headers of messages included.
    pub fn bytes_received(&self) -> u64 {
        self.session.counters.read().bytes_received
    }

    /// Local clipping, and what is left out on all ranks if anything is.
    fn correct(&mut self) {
        let method = &self.options.method;
        if method.correction().clip.is_some()
            && let Some(factor) = method.correction().shortening(norm(&self.gradient), self.session.workers)
        {
            self.gradient.iter_mut().for_each(|value| *value *= factor as f32);
        }
        // Each unit that is not finite is left out on all ranks: so all of them are.
        if method.nonfinite() == OnNonFinite::Skip && self.gradient.iter().any(|value| !value.is_finite()) {
            self.gradient.fill(f32::NAN);
        }
    }

    /// The parameters that are not ready in this pass.
    fn missing(&self) -> String {
        let missing = self.names.iter().zip(&self.ready).filter(|(_, ready)| !**ready);
        missing.map(|((name, _), _)| format!("'{name}'")).collect::<Vec<String>>().join(", ")
    }

    /// Whether no gradient of a pass was given yet.
    fn between_passes(&self, call: &'static str) -> Result<(), Error> {
        self.alive()?;
        if self.given > 0 { Err(ReplicaError::MidStep(call).into()) } else { Ok(()) }
    }

    fn alive(&self) -> Result<(), Error> {
        self.session.failure().map_or(Ok(()), |failure| Err(failure.into()))
    }
}

/// What all ranks must agree on, a line each.
fn lines(layout: &Layout, initial: &[f32], options: &Options) -> String {
    let mut hash = Sha256::new();
    initial.iter().for_each(|value| hash.update(value.to_le_bytes()));
    let digest = hash.finalize().iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    });
    let Options { method, synchrony, sgd, samples: _, epoch } = options;
    let mut text = describe(layout, method);
    text += &format!("synchrony {}\n{sgd:?}\n{epoch} steps in an epoch\n", synchrony.name());
    text += &format!("starting values with SHA-256 {digest}\n");
    text
}

/// By how much more than the mean worker this one counts, if they differ.
fn weight(session: &Inner, samples: u64) -> Result<Option<f32>, Error> {
    let mut all = Vec::new();
    for (rank, note) in (0..).zip(session.gather(Purpose::Replica, &samples.to_le_bytes())?) {
        let Ok(note) = <[u8; 8]>::try_from(&note[..]) else {
            let reason = format!("it sent {} bytes about its samples, expected 8", note.len());
            return Err(session.fail(Failure { rank, step: None, reason }));
        };
        all.push(u64::from_le_bytes(note));
    }
    let total: f64 = all.iter().map(|&samples| samples as f64).sum();
    let is_even = all.iter().all(|&other| other == all[0]);
    Ok((!is_even).then(|| (samples as f64 * f64::from(session.workers) / total) as f32))
}
