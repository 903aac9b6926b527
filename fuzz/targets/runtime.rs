#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gleaner_runtime::fuzzing::decode(data));
