// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C and C++ headers in the view of compilers: the errors of `sensor.hpp` with their messages,
//! and the rest of a program's sensors if `OVERHEAR_DISABLE` compiles them away.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

const C: &[&str] = &["-x", "c", "-std=c11"];
const CXX: &[&str] = &["-x", "c++", "-std=c++17"];
/// Compilers of each language.
const COMPILERS: [(&str, &[&str]); 4] = [
    ("gcc", C),
    ("clang-19", C),
    ("g++", CXX),
    ("clang++-19", CXX),
];

/// The installed compilers of this language.
fn compilers(language: &'static [&'static str]) -> impl Iterator<Item = &'static str> {
    let here = |name: &&str| {
        let found = Command::new(name).arg("--version").output().is_ok();
        if !found {
            println!("skipped: the compiler {name} is not installed");
        }
        found
    };
    let all = COMPILERS.into_iter().filter(move |&(_, of)| of == language);
    all.map(|(name, _)| name).filter(here)
}

/// Compiles a source; returns the result, or the messages of the compiler.
fn compile(
    compiler: &str,
    language: &[&str],
    how: &[&str],
    source: &str,
) -> Result<String, String> {
    let mut child = Command::new(compiler)
        .args(language)
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror"])
        .args(how)
        .arg("-I")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include"))
        .args(["-o", "-", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(source.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(text(&output.stderr))
    }
}

/// Payloads that `sensor.hpp` refuses, and the words of the message.
const REFUSED: [(&str, &str); 9] = [
    (
        "struct a { uint32_t b; uint64_t c; };\n\
         OVERHEAR_FIELDS(a, \"a\", OVERHEAR_FIELD(b, \"\"), OVERHEAR_FIELD(c, \"\"));",
        "whose bytes would leak",
    ),
    (
        "struct a { uint64_t b; uint32_t c; };\n\
         OVERHEAR_FIELDS(a, \"a\", OVERHEAR_FIELD(b, \"\"), OVERHEAR_FIELD(c, \"\"));",
        "whose bytes would leak",
    ),
    (
        "struct a { uint64_t b; uint64_t c; };\nOVERHEAR_FIELDS(a, \"a\", OVERHEAR_FIELD(b, \"\"));",
        "a member is not described",
    ),
    (
        "struct a { a(const a &) {} uint64_t b; };\nOVERHEAR_FIELDS(a, \"a\", OVERHEAR_FIELD(b, \"\"));",
        "must be trivially copyable",
    ),
    (
        "struct a { const char *b; };\nOVERHEAR_FIELDS(a, \"a\", OVERHEAR_FIELD(b, \"\"));",
        "a field is an integer",
    ),
    (
        "struct a { uint32_t b[2]; };\nOVERHEAR_FIELDS(a, \"a\", OVERHEAR_FIELD(b, \"\"));",
        "only those of char can be fields",
    ),
    (
        "struct a { char b[4089]; };\nOVERHEAR_FIELDS(a, \"a\", OVERHEAR_FIELD(b, \"\"));",
        "at most OH_MAX_PAYLOAD bytes",
    ),
    (
        "struct a { uint64_t b; };\nOVERHEAR_FIELDS(a, \"my a\", OVERHEAR_FIELD(b, \"\"));",
        "a type id has letters, digits and _",
    ),
    (
        "struct a { uint64_t b; };\noverhear::sensor<a> c;",
        "overhear_describe",
    ),
];

/// One accepted payload, so that the others are refused for their own reason.
const ACCEPTED: &str = "struct a { uint64_t b; char c[8]; };\n\
    OVERHEAR_FIELDS(a, \"a\", OVERHEAR_FIELD(b, \"\"), OVERHEAR_FIELD(c, \"\"));";

#[test]
fn wrong_payload_description_does_not_compile() {
    for compiler in compilers(CXX) {
        let check = |code: &str| {
            let source = format!("#include <overhear/sensor.hpp>\n{code}\n");
            compile(compiler, CXX, &["-fsyntax-only"], &source)
        };
        assert_eq!(check(ACCEPTED), Ok(String::new()), "{compiler}");
        for (code, words) in REFUSED {
            let message = check(code).expect_err(code);
            assert!(message.contains(words), "{compiler}: {code}\n{message}");
        }
    }
}

/// An instrumented program, and the expected rest of it below.
const PROGRAM_IN_C: &str = r#"
#include <overhear/sampler.h>
struct sample { uint64_t depth; double load; };
OH_SAMPLER(frame, 1000, "cycles", "instructions");
static oh_sampler *sampler;
static const oh_field fields[] = {
    OH_FIELD_U64(struct sample, depth, ""), OH_FIELD_F64(struct sample, load, "%"),
};
static oh_sensor *sensor;
int start(void);
void put(uint64_t depth);
void in_place(uint64_t depth);
void end(void);
int start(void)
{
    oh_sensor_options options = {0};
    options.id = "queue";
    options.type = "sample";
    options.fields = fields;
    options.field_count = 2;
    options.size = sizeof(struct sample);
    return oh_sensor_register(&sensor, &options) + oh_sampler_register(&sampler, &frame);
}
void put(uint64_t depth)
{
    struct sample value = {depth, 0.5};
    oh_sensor_put(sensor, &value);
    oh_sampler_sample(sampler);
}
void in_place(uint64_t depth)
{
    struct sample *element = (struct sample *)oh_sensor_write(sensor);
    element->depth = depth;
    element->load = 0.5;
    oh_sensor_commit(sensor);
    oh_sampler_job_begin(sampler);
    oh_sampler_job_end(sampler);
    oh_job_end();
}
void end(void)
{
    oh_sampler_register_again(sampler);
    oh_sampler_unregister(sampler);
    oh_sensor_register_again(sensor);
    oh_sensor_unregister(sensor);
}
"#;

const LEFT_IN_C: &str = r#"
#include <stdint.h>
int start(void);
void put(uint64_t depth);
void in_place(uint64_t depth);
void end(void);
int start(void) { return 0; }
void put(uint64_t depth) { (void)depth; }
void in_place(uint64_t depth) { (void)depth; }
void end(void) {}
"#;

const PROGRAM_IN_CXX: &str = r#"
#include <overhear/parts.hpp>
#include <overhear/sampler.hpp>
OH_SAMPLER(frame, 1000, "cycles", "instructions");
static overhear::sampler sampler;
struct sample { uint64_t depth; double load; };
OVERHEAR_FIELDS(sample, "sample", OVERHEAR_FIELD(depth, ""), OVERHEAR_FIELD(load, "%"));
static overhear::sensor<sample> sensor;
static overhear::message_sensor<> text;
static overhear::laned_sensor<sample> laned;
static overhear::concurrent_sensor<sample> queue;
extern "C" {
int start(void)
{
    sensor = overhear::sensor<sample>("queue", overhear::options().capacity(10));
    sampler = overhear::sampler(frame);
    return 0;
}
void put(uint64_t depth)
{
    sensor.write({depth, 0.5});
    sampler.sample();
}
void in_place(uint64_t depth)
{
    auto element = sensor.begin();
    element->depth = depth;
    element->load = 0.5;
    element.commit();
    laned.write({depth, 0.5});
    if (auto other = laned.begin())
        other.commit();
    queue.write({depth, 0.5});
    if (auto other = queue.begin())
        other.commit();
    text.write("of any length");
    const auto job = sampler.begin_job();
}
void end(void)
{
    sensor.register_again();
    sampler.register_again();
}
}
"#;

const LEFT_IN_CXX: &str = r#"
#include <stdint.h>
extern "C" {
int start(void) { return 0; }
void put(uint64_t) {}
void in_place(uint64_t) {}
void end(void) {}
}
"#;

/// The instructions of a function in the compiler's output, without labels and directives.
fn instructions<'a>(assembly: &'a str, function: &str) -> Vec<&'a str> {
    let label = format!("{function}:");
    let body = assembly
        .lines()
        .skip_while(|line| !line.starts_with(&label));
    let body = body
        .skip(1)
        .take_while(|line| !line.trim_start().starts_with(".size"));
    let body = body.map(|line| line.split('#').next().unwrap_or_default().trim());
    body.filter(|line| !line.is_empty() && !line.starts_with('.') && !line.ends_with(':'))
        .collect()
}

#[test]
fn disabled_sensor_leaves_no_instruction() {
    for (language, program, left) in [
        (C, PROGRAM_IN_C, LEFT_IN_C),
        (CXX, PROGRAM_IN_CXX, LEFT_IN_CXX),
    ] {
        for compiler in compilers(language) {
            let how = ["-O2", "-S", "-DOVERHEAR_DISABLE"];
            let assembly = |source| compile(compiler, language, &how, source).unwrap();
            let (disabled, bare) = (assembly(program), assembly(left));
            assert!(!disabled.contains("oh_"), "{compiler}:\n{disabled}");
            for function in ["start", "put", "in_place", "end"] {
                let expected = instructions(&bare, function);
                assert!(!expected.is_empty(), "{compiler}: {function}\n{bare}");
                assert_eq!(
                    instructions(&disabled, function),
                    expected,
                    "{compiler}: {function}"
                );
            }
            // The same source with sensors calls the library and has more instructions.
            let enabled = compile(compiler, language, &how[..2], program).unwrap();
            assert!(enabled.contains("oh_sensor_register_"), "{compiler}");
            assert!(enabled.contains("oh_sampler_job_end"), "{compiler}");
            assert!(instructions(&enabled, "put").len() > instructions(&bare, "put").len());
        }
    }
}
