#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| walferry_fuzz::wire::pgoutput(data));
