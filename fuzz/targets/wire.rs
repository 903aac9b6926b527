#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gleaner_transport::tcp::fuzzing::decode(data));
