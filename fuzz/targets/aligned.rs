#![no_main]

use gleaner_fuzz::{Form, body};

libfuzzer_sys::fuzz_target!(|data: &[u8]| body(Form::Aligned, data));
