#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| walferry_store::fuzzing::record(data));
