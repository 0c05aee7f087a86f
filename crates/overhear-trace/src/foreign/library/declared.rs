// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares our declarations of the library with its headers: a C file, made from the same list,
//! assigns each function to a pointer of the type that we have declared, and the compiler compares.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use super::{declared, AVAILABLE, END, OK, SILENT};

/// The output of the compiler for a C program.
fn compile(program: &str) -> std::io::Result<Output> {
    let mut compiler = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"])
        .args(["-x", "c", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut input) = compiler.stdin.take() {
        input.write_all(program.as_bytes())?;
    }
    compiler.wait_with_output()
}

const HEADER: &str = "#include <babeltrace2/babeltrace.h>\n";

/// Declares `name` in C with the C type for this Rust type.
fn declaration(rust: &str, name: &str) -> String {
    let rust = rust.trim();
    if let Some(pointed) = rust.strip_prefix("*mut ") {
        return declaration(pointed, &format!("*{name}"));
    }
    if let Some(pointed) = rust.strip_prefix("*const ") {
        return declaration(pointed, &format!("const *{name}"));
    }
    // Functions may be absent; in C every pointer may be null.
    let optional = rust.strip_prefix("core::option::Option<");
    let rust = optional
        .and_then(|rest| rest.strip_suffix('>'))
        .unwrap_or(rust);
    if let Some(rest) = rust.strip_prefix("unsafe extern \"C\" fn(") {
        let end = end_of_arguments(rest);
        let arguments: Vec<String> = split(&rest[..end])
            .into_iter()
            .map(|argument| declaration(argument, ""))
            .collect();
        let arguments = match arguments.is_empty() {
            true => "void".to_string(),
            false => arguments.join(", "),
        };
        let result = rest[end + 1..].trim().strip_prefix("->").unwrap_or("()");
        return declaration(result, &format!("(*{name})({arguments})"));
    }
    format!("{} {name}", plain(rust))
}

/// Index of the parenthesis that closes the one opened before.
fn end_of_arguments(text: &str) -> usize {
    let mut depth = 0;
    let closing = text.char_indices().find(|(_, c)| {
        depth += i32::from(*c == '(') - i32::from(*c == ')');
        depth < 0
    });
    closing.map_or(text.len(), |(at, _)| at)
}

/// Splits arguments, some of which are functions with arguments of their own.
fn split(arguments: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut begin) = (Vec::new(), 0, 0);
    for (at, c) in arguments.char_indices() {
        depth += i32::from(c == '(') - i32::from(c == ')');
        if c == ',' && depth == 0 {
            parts.push(&arguments[begin..at]);
            begin = at + 1;
        }
    }
    parts.push(&arguments[begin..]);
    parts.retain(|part| !part.trim().is_empty());
    parts
}

/// The C name of a type that is neither pointer nor function.
fn plain(rust: &str) -> String {
    let name = rust.trim().rsplit("::").next().unwrap_or_default();
    let known = match name {
        "()" | "c_void" => "void",
        // `c_char`; no other argument has this type.
        "i8" | "u8" => "char",
        "i32" => "int",
        "u32" => "unsigned int",
        "i64" => "int64_t",
        "u64" => "uint64_t",
        "f32" => "float",
        "f64" => "double",
        "SourceClass" => "bt_component_class_source",
        "FilterClass" => "bt_component_class_filter",
        "StructureMember" => "bt_field_class_structure_member",
        _ => "",
    };
    if !known.is_empty() {
        return known.to_string();
    }
    let mut c = "bt".to_string();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            c.push('_');
        }
        c.push(letter.to_ascii_lowercase());
    }
    c
}

#[test]
fn declarations_are_those_of_the_headers() {
    match compile(HEADER) {
        Err(error) => return println!("skipped: there is no C compiler: {error}"),
        Ok(output) if !output.status.success() => {
            return println!(
                "skipped: the headers of libbabeltrace2 are not installed (libbabeltrace2-dev)"
            );
        }
        Ok(_) => {}
    }
    let declared = declared();
    let mut program = format!("{HEADER}#include <stdint.h>\n");
    for (function, rust) in &declared {
        let pointer = declaration(rust, &format!("const checked_{function}"));
        program.push_str(&format!("{pointer} = {function};\n"));
    }
    for (constant, value) in [
        ("BT_GRAPH_RUN_ONCE_STATUS_OK", i64::from(OK)),
        ("BT_GRAPH_RUN_ONCE_STATUS_END", i64::from(END)),
        ("BT_LOGGING_LEVEL_NONE", i64::from(SILENT)),
        ("BT_PROPERTY_AVAILABILITY_AVAILABLE", i64::from(AVAILABLE)),
    ] {
        program.push_str(&format!(
            "_Static_assert({constant} == {value}, \"{constant}\");\n"
        ));
    }
    let output = compile(&program).unwrap();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaints}\n{program}");
    assert!(declared.len() > 70, "{}", declared.len());

    // The compiler does compare: it refuses a declaration that differs in one argument.
    let wrong = declaration("unsafe extern \"C\" fn(u32) -> *mut Graph", "wrong");
    let output = compile(&format!("{HEADER}{wrong} = bt_graph_create;\n")).unwrap();
    assert!(!output.status.success());
}

#[test]
fn types_of_rust_are_written_in_c() {
    for (rust, c) in [
        ("*const a::b::StreamClass", "bt_stream_class const *x"),
        ("*mut *const *const Message", "bt_message const *const **x"),
        ("unsafe extern \"C\" fn() -> *mut Value", "bt_value *(*x)(void)"),
        (
            "unsafe extern \"C\" fn(core::option::Option<unsafe extern \"C\" fn(*mut Graph, u64) -> i32>, f64)",
            "void (*x)(int (*)(bt_graph *, uint64_t ), double )",
        ),
    ] {
        assert_eq!(declaration(rust, "x"), c, "{rust}");
    }
}
