// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the fuzz targets of recordings and of imported traces over their seeds and inputs near
//! them.

#[path = "../../../fuzz/subjects/import.rs"]
mod import;
#[path = "../../../fuzz/subjects/recording.rs"]
mod recording;
#[path = "../../../fuzz/runner.rs"]
mod runner;
#[path = "../../../fuzz/subjects/trace.rs"]
mod trace;

use recording::Recording;

/// The seeds are the files of the recording as they are written; with `OVERHEAR_BLESS` set they are
/// updated.
fn bless(target: &str, files: &[&str], recording: &Recording) {
    if std::env::var_os("OVERHEAR_BLESS").is_some() {
        for (choice, file) in (0..).zip(files) {
            let seed = [&[choice], recording.original(file)].concat();
            let name = file.replace('/', "-");
            std::fs::write(runner::seeds_of(target).join(name), seed).unwrap();
        }
    }
}

#[test]
fn recordings_survive_fuzz_seeds_and_mutations() {
    let recording = Recording::new();
    bless("trace", &trace::FILES, &recording);
    runner::near_seeds("trace", 400, |input| trace::run(&recording, input));
}

#[test]
fn imports_survive_fuzz_seeds_and_mutations() {
    if let Err(error) = overhear_trace::ForeignTrace::available() {
        println!("skipped: {error}");
        return;
    }
    let recording = Recording::new();
    bless("import", &import::FILES, &recording);
    runner::near_seeds("import", 1_000, |input| import::run(&recording, input));
}
