//! Every parser of what comes from outside, held to what it promises. Not part of the program: the fuzzer calls these
//! functions (`scripts/fuzz`), and the test below replays its seeds.
//!
//! Each takes any bytes and panics where a promise is broken: a refusal that is no refusal of the caller's, a text that
//! reads back as another, a search that goes backwards. `fuzz/corpus/<name>` holds the seeds of the function of that name.

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

/// All of them, by the names of their seeds.
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

/// Whatever came in, it is the caller who hears what is wrong with it: never a failure of ours.
fn told<T>(read: Result<T, ApiError>) -> Option<T> {
    match read {
        Ok(value) => Some(value),
        Err(error) => {
            assert!(error.status().is_client_error(), "{error:?}");
            None
        }
    }
}

/// The first line, and what follows it.
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
    fn every_parser_keeps_its_promises_on_every_seed() {
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
    fn every_parser_is_fuzzed() {
        let known: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(names(&fuzz().join("corpus")), known);
        let programs: BTreeSet<String> = TARGETS.iter().map(|(name, _)| format!("{name}.rs")).collect();
        assert_eq!(names(&fuzz().join("fuzz_targets")), programs);
        for (name, _) in TARGETS {
            let program = fs::read_to_string(fuzz().join(format!("fuzz_targets/{name}.rs"))).unwrap();
            assert!(program.contains(&format!("server::parsers::{name}(data)")), "{name}");
        }
    }
}
