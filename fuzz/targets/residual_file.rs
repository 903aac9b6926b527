#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gleaner_runtime::fuzzing::residual_file(data));
