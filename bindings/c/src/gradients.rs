//! Gradients that go in parameter by parameter.

use std::ffi::c_char;
use std::path::Path;
use std::sync::Mutex;

use gleaner::{Finding, Gradients, Layout, LayoutError, Update};

use crate::handles::{Handles, lock};
use crate::method::{METHODS, gleaner_method, refused};
use crate::session::{SESSIONS, gleaner_session};
use crate::status::{Refused, call, gleaner_status, room, slice, slice_mut, text};

/// A parameter of a model.
#[repr(C)]
pub struct gleaner_parameter {
    /// Its name, which no other one has.
    pub name: *const c_char,
    /// How many entries it has.
    pub entries: usize,
    /// Parameters that stand together with the same number travel together, as soon as all of them are ready.
    pub group: u32,
}

/// What waits on this rank, and how long, over the last steps that were looked at.
#[repr(C)]
pub struct gleaner_health_numbers {
    /// In how many steps it was looked at, so far: in each seventeenth. Nothing is found before the fourth.
    pub looks: u64,
    /// How many steps a value waits until it is delivered: infinitely many where nothing is, and 0 where nothing waits.
    pub waits: f64,
    /// The sum of the magnitudes of what waits after a step.
    pub waiting: f64,
    /// The same of what a step delivers of this rank's values.
    pub delivered: f64,
    /// The share of the entries that a step is set to deliver.
    pub density: f64,
    /// How many findings there are.
    pub findings: usize,
}

/// The gradients of a model's parameters, and the last step's update.
pub struct gleaner_gradients(Mutex<Stepping>);

struct Stepping {
    gradients: Gradients,
    update: Option<Update>,
}

static GRADIENTS: Handles<gleaner_gradients> =
    Handles::new("the gradients", "gleaner_gradients_new", "gleaner_gradients_free");

/// Calls `work` with the last update, a parameter's name and the values of the caller's.
///
/// # Safety
/// The pointers are null or valid, and there are `count` values that no other code uses during the call.
unsafe fn with_mean(
    gradients: *mut gleaner_gradients,
    parameter: *const c_char,
    values: *mut f32,
    count: usize,
    work: impl FnOnce(&Update, &str, &mut [f32]) -> Result<(), LayoutError>,
) -> gleaner_status {
    call(|| {
        let own = GRADIENTS.get(gradients)?;
        // SAFETY: the caller promises it.
        let (parameter, values) =
            unsafe { (text(parameter, "the parameter's name")?, slice_mut(values, count, "the values")?) };
        Ok(work(lock(&own.0).last()?, parameter, values).map_err(gleaner::Error::from)?)
    })
}

/// Calls `work` with the gradients and a path.
///
/// # Safety
/// The pointers are null or valid.
unsafe fn with_file(
    gradients: *mut gleaner_gradients,
    path: *const c_char,
    work: impl FnOnce(&mut Gradients, &Path) -> Result<(), gleaner::Error>,
) -> gleaner_status {
    call(|| {
        let own = GRADIENTS.get(gradients)?;
        // SAFETY: the caller promises it.
        let path = unsafe { text(path, "the path")? };
        Ok(work(&mut lock(&own.0).gradients, Path::new(path))?)
    })
}

impl Stepping {
    fn last(&self) -> Result<&Update, Refused> {
        let sentence = "there is no update before gleaner_wait has given one";
        self.update.as_ref().ok_or_else(|| Refused::new(gleaner_status::GLEANER_LAYOUT, sentence))
    }
}

/// Agrees with all ranks on the parameters and the method. Free them with gleaner_gradients_free.
///
/// # Safety
/// The pointers are null or valid, and there are `count` parameters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gleaner_gradients_new(
    session: *mut gleaner_session,
    method: *mut gleaner_method,
    parameters: *const gleaner_parameter,
    count: usize,
    gradients: *mut *mut gleaner_gradients,
) -> gleaner_status {
    call(|| {
        let (joined, method) = (SESSIONS.get(session)?, METHODS.get(method)?);
        // SAFETY: the caller promises it.
        let (parameters, room) = unsafe {
            (slice(parameters, count, "the parameters")?, room(gradients, "where the gradients go")?)
        };
        let mut layout = Layout::new();
        let mut group = parameters.first().map_or(0, |first| first.group);
        for parameter in parameters {
            if parameter.group != group {
                layout = layout.group();
                group = parameter.group;
            }
            // SAFETY: the caller promises it.
            let name = unsafe { text(parameter.name, "a parameter's name")? };
            layout = layout.parameter(name, parameter.entries);
        }
        let method = lock(&method.0).clone();
        let made = Stepping { gradients: joined.session.gradients(&layout, method)?, update: None };
        room.put(GRADIENTS.put(gleaner_gradients(Mutex::new(made))));
        Ok(())
    })
}

/// The gradient of a parameter is ready. The values are free when this returns. In each step every parameter needs one, in
/// any order; the last one of a group begins its exchange, which goes on in the background.
///
/// # Safety
/// The pointers are null or valid, and there are `count` values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gleaner_ready(
    gradients: *mut gleaner_gradients,
    parameter: *const c_char,
    values: *const f32,
    count: usize,
) -> gleaner_status {
    call(|| {
        let own = GRADIENTS.get(gradients)?;
        // SAFETY: the caller promises it.
        let (parameter, values) =
            unsafe { (text(parameter, "the parameter's name")?, slice(values, count, "the values")?) };
        Ok(lock(&own.0).gradients.ready(parameter, values)?)
    })
}

/// Waits for the update of this step, the same on every rank, and keeps it until the next. `skipped`, which may be null,
/// says whether all ranks left the step out because values of one were not finite: see the option on_nonfinite.
///
/// # Safety
/// The pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gleaner_wait(
    gradients: *mut gleaner_gradients,
    skipped: *mut bool,
) -> gleaner_status {
    call(|| {
        let own = GRADIENTS.get(gradients)?;
        let mut own = lock(&own.0);
        let update = own.gradients.wait()?;
        let is_skipped = update.skipped().is_some();
        own.update = Some(update);
        if !skipped.is_null() {
            // SAFETY: the caller promises it.
            unsafe { room(skipped, "where it goes whether the step was left out")? }.put(is_skipped);
        }
        Ok(())
    })
}

/// Writes a parameter's mean over all ranks, of the last update: zeros where nothing was delivered.
///
/// # Safety
/// The pointers are null or valid, and there is room for `count` values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gleaner_read(
    gradients: *mut gleaner_gradients,
    parameter: *const c_char,
    values: *mut f32,
    count: usize,
) -> gleaner_status {
    // SAFETY: the caller promises it.
    unsafe {
        with_mean(gradients, parameter, values, count, |update, parameter, values| {
            update.copy_to(parameter, values)
        })
    }
}

/// Adds `scale` times a parameter's mean over all ranks, of the last update: with a negative learning rate, what plain
/// gradient descent does.
///
/// # Safety
/// The pointers are null or valid, and there are `count` values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gleaner_add(
    gradients: *mut gleaner_gradients,
    parameter: *const c_char,
    values: *mut f32,
    count: usize,
    scale: f32,
) -> gleaner_status {
    // SAFETY: the caller promises it.
    unsafe {
        with_mean(gradients, parameter, values, count, |update, parameter, values| {
            update.add_to(parameter, values, scale)
        })
    }
}

/// What waits on this rank and how long, and what in that slows a training whose optimiser has this momentum, from 0 to below 1: 0
/// with gleaner_late_sgd_step, which counts how long entries have waited, and beside momentum correction. What is found are sentences, of which
/// those that fit are written to `findings`, each with a line feed, and after them a zero byte; it has `size` bytes, and may be null if that is 0.
///
/// # Safety
/// The pointers are null or valid, and there is room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gleaner_health(
    gradients: *mut gleaner_gradients,
    momentum: f32,
    numbers: *mut gleaner_health_numbers,
    findings: *mut c_char,
    size: usize,
) -> gleaner_status {
    call(|| {
        let own = GRADIENTS.get(gradients)?;
        if !(0.0..1.0).contains(&momentum) {
            let sentence = format!(
                "the momentum of the optimiser is {momentum}; expected a number from 0 to below 1, such as 0.9"
            );
            return Err(refused(sentence));
        }
        // SAFETY: the caller promises it.
        let (numbers, lines) = unsafe {
            (
                room(numbers, "where the numbers go")?,
                slice_mut(findings.cast::<u8>(), size, "where the findings go")?,
            )
        };
        let health = lock(&own.0).gradients.health();
        let found = health.findings(momentum);
        put_lines(&found, lines);
        numbers.put(gleaner_health_numbers {
            looks: health.looks,
            waits: health.waits(),
            waiting: health.waiting,
            delivered: health.delivered,
            density: health.density,
            findings: found.len(),
        });
        Ok(())
    })
}

/// Writes the first findings, as many as there is room for, each as a line, and a zero byte.
fn put_lines(findings: &[Finding], into: &mut [u8]) {
    let mut end = 0;
    for finding in findings {
        let line = format!("{finding}\n");
        match into.get_mut(end..end + line.len() + 1) {
            Some(place) => place[..line.len()].copy_from_slice(line.as_bytes()),
            None => break,
        }
        end += line.len();
    }
    if let Some(last) = into.get_mut(end) {
        *last = 0;
    }
}

/// Writes what this rank has not delivered yet, what the method has learnt and the step to a file, which holds a whole
/// checkpoint or the one before. Call it between steps, on every rank with a path of its own.
///
/// # Safety
/// The pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gleaner_save(
    gradients: *mut gleaner_gradients,
    path: *const c_char,
) -> gleaner_status {
    // SAFETY: the caller promises it.
    unsafe { with_file(gradients, path, |gradients, path| gradients.save(path)) }
}

/// Goes on from what gleaner_save wrote, bit by bit. All ranks call it together, each with its own file; if one cannot go
/// on, it fails on all, and nothing has changed.
///
/// # Safety
/// The pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gleaner_load(
    gradients: *mut gleaner_gradients,
    path: *const c_char,
) -> gleaner_status {
    // SAFETY: the caller promises it.
    unsafe { with_file(gradients, path, |gradients, path| gradients.load(path)) }
}

/// Frees gradients; nothing for null. In the middle of a step this ends the job: the others wait for the rest of it.
#[unsafe(no_mangle)]
pub extern "C" fn gleaner_gradients_free(gradients: *mut gleaner_gradients) {
    // What went wrong has been reported to all ranks.
    let _ = call(|| {
        GRADIENTS.free(gradients);
        Ok(())
    });
}
