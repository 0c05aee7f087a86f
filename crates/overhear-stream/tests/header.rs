// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compile errors of the C header, which the tests in C cannot show: a member whose size or class
//! is not the one its `OH_FIELD_*` claims, or a pointer where an array is claimed.
#![cfg(not(any(loom, miri)))]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

const COMPILERS: [(&str, &str); 4] = [
    ("gcc", "-std=c11"),
    ("clang-19", "-std=c11"),
    ("g++", "-std=c++17"),
    ("clang++-19", "-std=c++17"),
];

/// The result of compiling a program with one described field: `Ok`, or its errors. `None` if the
/// compiler is not installed.
fn compile(compiler: &str, standard: &str, field: &str) -> Option<Result<(), String>> {
    let program = format!(
        "#include <overhear/sensor.h>\n\
         struct s {{ uint64_t word; double real; int32_t number; uint32_t flags; char text[8]; \
         char *pointer; const char *constant; uint8_t bytes[8]; }};\n\
         const oh_field *field(void);\n\
         const oh_field *field(void) {{ static const oh_field f[] = {{ {field} }}; return f; }}\n"
    );
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include");
    let language = if standard.contains("++") { "c++" } else { "c" };
    let mut command = Command::new(compiler);
    command.args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror"]);
    command.arg("-I").arg(include);
    command.args(["-x", language, "-fsyntax-only", "-"]);
    command.stdin(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        println!("skipped: {compiler} is not installed");
        return None;
    };
    // Dropped at the end of the statement; the compiler reads the end of its input then.
    let written = child.stdin.take().unwrap().write_all(program.as_bytes());
    written.unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    Some(output.status.success().then_some(()).ok_or(errors))
}

#[test]
fn fields_of_another_size_or_class_do_not_compile() {
    let good = [
        "OH_FIELD_U64(struct s, word, \"ns\")",
        "OH_FIELD_F64(struct s, real, NULL)",
        "OH_FIELD_TEXT(struct s, text, \"\")",
        "OH_FIELD_TEXT(struct s, bytes, \"\")",
    ];
    let bad = [
        ("OH_FIELD_U64(struct s, number, \"\")", "another size"),
        ("OH_FIELD_U64(struct s, real, \"\")", "class"),
        ("OH_FIELD_F64(struct s, word, \"\")", "class"),
        ("OH_FIELD_U32(struct s, number, \"\")", "class"),
        ("OH_FIELD_I32(struct s, flags, \"\")", "class"),
        ("OH_FIELD_TEXT(struct s, flags, \"\")", "array"),
        ("OH_FIELD_TEXT(struct s, pointer, \"\")", "no array"),
        ("OH_FIELD_TEXT(struct s, constant, \"\")", "no array"),
    ];
    for (compiler, standard) in COMPILERS {
        for field in good {
            match compile(compiler, standard, field) {
                Some(result) => assert_eq!(result, Ok(()), "{compiler}: {field}"),
                None => break,
            }
        }
        for (field, why) in bad {
            match compile(compiler, standard, field) {
                Some(Ok(())) => panic!("{compiler} accepts {field}"),
                Some(Err(errors)) => assert!(errors.contains(why), "{compiler}: {errors}"),
                None => break,
            }
        }
    }
}

#[test]
fn old_standards_are_refused_in_words() {
    let Some(result) = compile("gcc", "-std=c99", "{0}") else {
        return;
    };
    assert!(result.unwrap_err().contains("needs C11 or C++17"));
}
