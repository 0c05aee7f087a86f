// SPDX-License-Identifier: MIT OR Apache-2.0
//! Data sources in shared objects, by `include/overhear/data_source.h`, as C11 and as C++17.

use std::path::{Path, PathBuf};
use std::process::Command;

use overhear_sampling::sources::SourceFinder;
use overhear_sampling::{CostClass, QuantityKind};

/// Counts its reads from the number in its argument on; the level is the process, the real number
/// half of the reads. After `limit` reads it fails.
const SOURCE: &str = r#"
#include "overhear/data_source.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

struct state { uint64_t reads; int64_t pid; };

static void *create(const char *argument, uint32_t pid, char *error, size_t error_size)
{
    struct state *state;
    if (argument[0] == '-') {
        snprintf(error, error_size, "`%s` is less than zero", argument);
        return NULL;
    }
    state = (struct state *)malloc(sizeof *state);
    if (state == NULL)
        return NULL;
    state->reads = strtoull(argument, NULL, 10);
    state->pid = pid;
    return state;
}

static int read_values(void *self, oh_quantity_value *values)
{
    struct state *state = (struct state *)self;
    if (++state->reads > 100)
        return EIO;
    values[0].count = state->reads;
    values[1].level = -state->pid;
    values[2].real = (double)state->reads / 2;
    return 0;
}

static const oh_quantity quantities[] = {
    {"reads", "", OH_QUANTITY_COUNT, 0},
    {"negative_pid", "", OH_QUANTITY_LEVEL, 0},
    {"half", "m", OH_QUANTITY_REAL, 0},
};
static const oh_data_source source = {
    sizeof(oh_data_source), OH_COST_SYSTEM_CALL, quantities, 3, 0, create, read_values, free,
};
OH_EXPORT_DATA_SOURCE(&source)
"#;

/// Builds a shared object; `None` without this compiler.
fn build(folder: &Path, name: &str, text: &str, compiler: [&str; 2]) -> Option<PathBuf> {
    let extension = if compiler[0] == "g++" { "cpp" } else { "c" };
    let source = folder.join(format!("{name}.{extension}"));
    std::fs::write(&source, text).unwrap();
    let object = folder.join(format!("{name}.so"));
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include");
    let built = Command::new(compiler[0])
        .args([
            compiler[1],
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pedantic",
            "-shared",
            "-fPIC",
            "-I",
        ])
        .args([&include, &source, Path::new("-o"), &object])
        .output();
    let Ok(built) = built else {
        println!("skipped: there is no {}", compiler[0]);
        return None;
    };
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    Some(object)
}

fn named(object: &Path, argument: &str) -> String {
    format!("plugin:{}{argument}", object.display())
}

#[test]
fn quantities_stand_among_the_others() {
    let folder = tempfile::tempdir().unwrap();
    for (name, compiler) in [("c", ["gcc", "-std=c11"]), ("cxx", ["g++", "-std=c++17"])] {
        let Some(object) = build(folder.path(), name, SOURCE, compiler) else {
            continue;
        };
        let finder = SourceFinder::default().of_process(std::process::id());
        let names = ["minor-faults", &named(&object, "=7"), "meminfo:MemTotal"];
        let mut reading = finder.find(&names).unwrap();
        let found = reading.quantities();
        let all: Vec<(&str, &str, QuantityKind)> = found
            .iter()
            .map(|it| (it.name.as_str(), it.unit.as_str(), it.kind))
            .collect();
        use QuantityKind::{Count, Level, RealLevel};
        let expected = [
            ("minor_faults", "", Count),
            ("reads", "", Count),
            ("negative_pid", "", Level),
            ("half", "m", RealLevel),
            ("meminfo_MemTotal", "B", Level),
        ];
        assert_eq!(all, expected);
        let mut values = [0; 5];
        reading.read(&mut values).unwrap();
        assert_eq!(values[1], 8);
        assert_eq!(values[2].cast_signed(), -i64::from(std::process::id()));
        assert_eq!(f64::from_bits(values[3]), 4.0);
        assert!(values[0] > 0 && values[4] > 1 << 20);
        // A failing read is an error with its reason, and the next source is read again later.
        let mut alone = SourceFinder::default()
            .find(&[named(&object, "=99")])
            .unwrap();
        assert_eq!(alone.cost(), CostClass::SystemCall);
        alone.read(&mut values).unwrap();
        let error = alone.read(&mut values).unwrap_err().to_string();
        assert!(
            error.contains("cannot be read: Input/output error"),
            "{error}"
        );
    }
}

#[test]
fn wrong_objects_are_sentences() {
    let folder = tempfile::tempdir().unwrap();
    let error = |name: &str| {
        let found = SourceFinder::default().find(&[name]);
        found.expect_err("it is wrong").to_string()
    };
    let absent = error("plugin:/no/such/file.so");
    assert!(absent.contains("it does not load: "), "{absent}");
    let compiler = ["gcc", "-std=c11"];
    let Some(object) = build(folder.path(), "good", SOURCE, compiler) else {
        return;
    };
    let message = error(&named(&object, "=-1"));
    assert!(
        message.ends_with("cannot be created: `-1` is less than zero"),
        "{message}"
    );
    let cases = [
        ("int nothing; ", "it lacks the function `oh_data_source_v1`"),
        (
            "#include \"overhear/data_source.h\"\nOH_EXPORT_DATA_SOURCE(NULL)\n",
            "returns NULL",
        ),
        (
            &SOURCE.replace("sizeof(oh_data_source), ", "8, "),
            "a size of 8 bytes, which is too small",
        ),
        (
            &SOURCE.replace("quantities, 3,", "quantities, 0,"),
            "it has 0 quantities",
        ),
        (
            &SOURCE.replace("\"half\"", "\"a half\""),
            "its quantity 3 is no C identifier",
        ),
        (
            &SOURCE.replace("OH_QUANTITY_REAL, 0}", "9, 0}"),
            "`half` has the unknown kind 9",
        ),
    ];
    for (number, (text, part)) in cases.into_iter().enumerate() {
        let object = build(folder.path(), &format!("bad{number}"), text, compiler).unwrap();
        let message = error(&named(&object, ""));
        assert!(message.contains(part), "{message}");
    }
}
