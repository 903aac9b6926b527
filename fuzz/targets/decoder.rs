#![no_main]

use gleaner_fuzz::stream;

libfuzzer_sys::fuzz_target!(|data: &[u8]| stream(data));
