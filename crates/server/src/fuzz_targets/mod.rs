//! Fuzz targets for every parser of external input. Called by the fuzzer (`scripts/fuzz`) and by the test below, which
//! replays the seeds. Not part of the product.
//!
//! Each function takes any bytes and panics if the parser breaks a guarantee: for example if it reports a server error,
//! or does not survive a round trip. `fuzz/corpus/<name>` holds the seeds of the function with that name.

mod addresses;
mod bodies;
mod commands;
mod failures;
mod mails;
mod names;
mod requests;
mod triggers;
mod uploads;

pub use addresses::address;
pub use bodies::{body, runtime, selector};
pub use commands::command;
pub use failures::failure;
pub use mails::mail;
pub use names::{cursor, glob, name};
pub use requests::{head, hook};
pub use triggers::{expression, schedule, trigger};
pub use uploads::batch;

use crate::error::ApiError;

type Target = (&'static str, fn(&[u8]));

/// Every fuzz target, by the name of its corpus.
pub const TARGETS: [Target; 16] = [
    ("address", address),
    ("batch", batch),
    ("body", body),
    ("command", command),
    ("cursor", cursor),
    ("expression", expression),
    ("failure", failure),
    ("glob", glob),
    ("head", head),
    ("hook", hook),
    ("mail", mail),
    ("name", name),
    ("runtime", runtime),
    ("schedule", schedule),
    ("selector", selector),
    ("trigger", trigger),
];

/// Returns the accepted value. A refusal must be a client error, never a server error.
fn accepted<T>(read: Result<T, ApiError>) -> Option<T> {
    match read {
        Ok(value) => Some(value),
        Err(error) => {
            assert!(error.status().is_client_error(), "{error:?}");
            None
        }
    }
}

/// Splits the input after its first line.
fn first_line(data: &[u8]) -> (&[u8], &[u8]) {
    match data.iter().position(|byte| *byte == b'\n') {
        Some(end) => (&data[..end], &data[end + 1..]),
        None => (data, &[]),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::TARGETS;

    fn fuzz() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
    }

    fn names(folder: &Path) -> BTreeSet<String> {
        let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn every_fuzz_target_holds_its_invariants_on_every_corpus_seed() {
        for (name, target) in TARGETS {
            let folder = fuzz().join("corpus").join(name);
            let seeds = names(&folder);
            assert!(!seeds.is_empty(), "{name} has no seeds");
            for seed in seeds {
                println!("{name}/{seed}");
                target(&fs::read(folder.join(seed)).unwrap());
            }
        }
    }

    #[test]
    fn every_fuzz_target_has_a_corpus_and_a_program() {
        let names_of_targets: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(names(&fuzz().join("corpus")), names_of_targets);
        let programs: BTreeSet<String> = TARGETS.iter().map(|(name, _)| format!("{name}.rs")).collect();
        assert_eq!(names(&fuzz().join("fuzz_targets")), programs);
        for (name, _) in TARGETS {
            let program = fs::read_to_string(fuzz().join(format!("fuzz_targets/{name}.rs"))).unwrap();
            assert!(program.contains(&format!("server::fuzz_targets::{name}(data)")), "{name}");
        }
    }
}
