#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| server::fuzz_targets::glob(data));
