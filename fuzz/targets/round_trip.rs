#![no_main]

use gleaner_fuzz::round_trip;

libfuzzer_sys::fuzz_target!(|data: &[u8]| round_trip(data));
