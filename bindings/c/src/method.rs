//! A method as a caller chooses it.

use std::ffi::c_char;
use std::sync::Mutex;

use gleaner::Method;

use crate::handles::{Handles, lock};
use crate::status::{Refused, call, gleaner_status, room, text};

/// An all-reduce, how many entries it delivers, and what happens to the rest.
pub struct gleaner_method(pub(crate) Mutex<Method>);

pub(crate) static METHODS: Handles<gleaner_method> =
    Handles::new("the method", "gleaner_method_new", "gleaner_method_free");

/// An invalid method, or an invalid option of one.
pub(crate) fn refused(error: impl ToString) -> Refused {
    Refused::new(gleaner_status::GLEANER_METHOD, error)
}

/// Makes the method of a name, such as "spardl", "ring" or "auto", that selects this share of the entries, above 0 and
/// at most 1, with exact values unless "values" is set; or with a density of 0 the default: 5% of the entries, and of gradients at
/// least 256 of each group, with values of 4 bits. A method that delivers every entry does not look at it. Free it with gleaner_method_free; whatever was made of
/// it goes on.
///
/// # Safety
/// The pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gleaner_method_new(
    name: *const c_char,
    density: f64,
    method: *mut *mut gleaner_method,
) -> gleaner_status {
    call(|| {
        // SAFETY: the caller promises it.
        let (name, method) =
            unsafe { (text(name, "the method's name")?, room(method, "where the method goes")?) };
        let named = Method::named(name).map_err(refused)?;
        let made = match density {
            0.0 => named,
            density if density > 0.0 && density <= 1.0 => named.density(density),
            _ => {
                let sentence = format!(
                    "the density is {density}; expected a number above 0 and at most 1, such as 0.01, or 0 for the default"
                );
                return Err(refused(sentence));
            }
        };
        method.put(METHODS.put(gleaner_method(Mutex::new(made))));
        Ok(())
    })
}

/// Sets an option of a method: "k" (how many entries are delivered), "values" ("exact", "bf16", "f16", "qsgd8", "qsgd4" or
/// "qsgd2"), "selector", "residual", "select_over", "on_nonfinite" ("refuse" or "skip"), "momentum_correction", and after it
/// "mask_momentum" or "ef21" ("1" or "0"), "residual_decay", "clip_local", "warmup_density", "dense_below", "deliver_all_every", "deliver_all_at" (steps
/// with commas between them), "complete_sums" ("1" or "0"), "norm_share", or one of the method's own, such as "teams" of SparDL.
///
/// # Safety
/// The texts are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gleaner_method_set(
    method: *mut gleaner_method,
    option: *const c_char,
    value: *const c_char,
) -> gleaner_status {
    call(|| {
        let method = METHODS.get(method)?;
        // SAFETY: the caller promises it.
        let (option, value) = unsafe { (text(option, "the option")?, text(value, "its value")?) };
        let mut method = lock(&method.0);
        *method = set(method.clone(), option, value)?;
        Ok(())
    })
}

fn set(method: Method, option: &str, value: &str) -> Result<Method, Refused> {
    let method = method.with(option, value).map_err(refused)?;
    method.correction().check().map_err(refused)?;
    Ok(method)
}

/// Frees a method; nothing for null.
#[unsafe(no_mangle)]
pub extern "C" fn gleaner_method_free(method: *mut gleaner_method) {
    METHODS.free(method);
}
