// SPDX-License-Identifier: MIT OR Apache-2.0
//! Probes on programs in their installed form: stripped, with or without a debug file, in C, C++
//! and Rust, and the C library itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{cpu_lock, has_tool, is_root, Backend, OVERHEAR};

fn source(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/counts/stripped");
    folder.join(name)
}

/// Runs a tool, which must succeed.
fn tool(name: &str, arguments: &[&str]) {
    let output = Command::new(name).args(arguments).output().unwrap();
    assert!(output.status.success(), "{name} {arguments:?}: {output:?}");
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The result of a run with a probe: the number of its events, or the message of a usage error.
fn passed(probe: &str, program: &Path) -> Result<u64, String> {
    let output = run(&["--probe", probe], program);
    let messages = String::from_utf8_lossy(&output.stderr).into_owned();
    match output.status.code() {
        Some(0) => {
            let report: Value = serde_json::from_slice(&output.stdout).unwrap();
            let sensor = &report["kernel_sensors"][0];
            assert!(sensor["id"].as_str().unwrap().starts_with("probe/"));
            Ok(sensor["elements"].as_u64().unwrap())
        }
        Some(2) => Err(messages),
        status => panic!("{status:?}: {messages}"),
    }
}

fn run(options: &[&str], program: &Path) -> Output {
    let mut command = Command::new(OVERHEAR);
    command.args(["run", "--quiet", "--backend", "bpf", "--json"]);
    command.args(options).arg("--").arg(program);
    command.output().unwrap()
}

/// Whether probes work here, and these tools are there.
fn can_probe(tools: &[&str]) -> bool {
    tools.iter().all(|tool| has_tool(tool)) && Backend::Bpf.works()
}

/// The address of a symbol, as `nm` prints it.
fn address(program: &Path, symbol: &str) -> u64 {
    let output = Command::new("nm").arg(program).output().unwrap();
    let listed = String::from_utf8(output.stdout).unwrap();
    let own = listed
        .lines()
        .find(|line| line.ends_with(&format!(" {symbol}")));
    u64::from_str_radix(own.unwrap().split(' ').next().unwrap(), 16).unwrap()
}

/// The C program, not stripped yet. `priced` is a dynamic symbol.
fn shop(work_folder: &TempDir) -> PathBuf {
    let program = work_folder.path().join("shop");
    let sources = ["shop.c", "again.c"].map(source);
    let sources = sources.each_ref().map(|path| text(path));
    // With an address for what is exported, and a build id.
    let options = ["-O1", "-rdynamic", "-Wl,--build-id", "-o", text(&program)];
    tool("cc", &[&options[..], &sources].concat());
    program
}

#[test]
fn stripped_program_is_probed_by_its_remaining_symbols() {
    let _cpus = cpu_lock();
    if !can_probe(&["cc", "nm", "strip"]) {
        return;
    }
    let work_folder = tempfile::tempdir().unwrap();
    let program = shop(&work_folder);
    let weighed = address(&program, "weighed");
    let of = |symbol: &str| format!("{}:{symbol}", program.display());
    assert_eq!(passed(&of("weighed"), &program), Ok(20));
    // Two local functions: one is called ten times, the other twice as often.
    let error = passed(&of("packed"), &program).unwrap_err();
    assert!(
        error.contains("ambiguous: there are packed at 0x"),
        "{error}"
    );
    let (_, places) = error.split_once("there are ").unwrap();
    let mut times: Vec<u64> = places
        .split("packed at ")
        .skip(1)
        .map(|it| passed(&of(it.split([',', ';']).next().unwrap()), &program).unwrap())
        .collect();
    times.sort_unstable();
    assert_eq!(times, [10, 20]);

    tool("strip", &[text(&program)]);
    assert_eq!(passed(&of("priced"), &program), Ok(30));
    assert_eq!(passed(&of("priced:return"), &program), Ok(30));
    let error = passed(&of("weighed"), &program).unwrap_err();
    assert!(error.contains("has no function weighed"), "{error}");
    assert_eq!(passed(&of(&format!("{weighed:#x}")), &program), Ok(20));
    let error = passed(&of("0x0"), &program).unwrap_err();
    assert!(error.contains("has no code at 0x0"), "{error}");
    // An offset in the file, as the kernel counts it: in the segment that contains the address.
    let headers = Command::new("readelf")
        .args(["-lW", text(&program)])
        .output();
    let headers = String::from_utf8(headers.unwrap().stdout).unwrap();
    let number = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap();
    let segments = headers
        .lines()
        .filter(|line| line.trim().starts_with("LOAD"));
    let offset = segments
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .map(|words| (number(words[1]), number(words[2]), number(words[4])))
        .find(|(_, begin, bytes)| (*begin..begin + bytes).contains(&weighed))
        .map(|(offset, begin, _)| weighed - begin + offset);
    let offset = offset.unwrap();
    assert_eq!(passed(&of(&format!("+{offset:#x}")), &program), Ok(20));
}

#[test]
fn debug_file_of_a_stripped_program_has_its_names() {
    let _cpus = cpu_lock();
    if !can_probe(&["cc", "strip", "objcopy"]) {
        return;
    }
    let work_folder = tempfile::tempdir().unwrap();
    let program = shop(&work_folder);
    let of = |symbol: &str| format!("{}:{symbol}", program.display());
    let folder = work_folder.path().join(".debug");
    fs::create_dir(&folder).unwrap();
    let debug = folder.join("shop.debug");
    let whole = work_folder.path().join("whole");
    fs::copy(&program, &whole).unwrap();
    tool(
        "objcopy",
        &["--only-keep-debug", text(&whole), text(&debug)],
    );
    tool("strip", &[text(&program)]);
    assert!(passed(&of("weighed"), &program).is_err());

    // By a link with a checksum, in the program's folder and in the one for debug files.
    let link = format!("--add-gnu-debuglink={}", debug.display());
    tool("objcopy", &[&link, text(&program)]);
    assert_eq!(passed(&of("weighed"), &program), Ok(20));
    let debug_file = work_folder.path().join("shop.debug");
    fs::rename(&debug, &debug_file).unwrap();
    assert_eq!(passed(&of("weighed"), &program), Ok(20));

    // The file of another build does not match.
    fs::remove_file(&debug_file).unwrap();
    let other = work_folder.path().join("other");
    tool(
        "cc",
        &[
            "-O0",
            "-Wl,--build-id",
            "-o",
            text(&other),
            text(&source("shop.c")),
            text(&source("again.c")),
        ],
    );
    tool(
        "objcopy",
        &["--only-keep-debug", text(&other), text(&debug_file)],
    );
    let error = passed(&of("weighed"), &program).unwrap_err();
    assert!(error.contains("has no function weighed"), "{error}");

    // By its build id, where the system keeps debug files.
    if !is_root() {
        return println!(
            "skipped: not root, so no debug file can be put where the system keeps them"
        );
    }
    let id = Command::new("readelf")
        .args(["-n", text(&program)])
        .output()
        .unwrap();
    let id = String::from_utf8(id.stdout).unwrap();
    let (_, id) = id.split_once("Build ID: ").unwrap();
    let id = id.split_whitespace().next().unwrap();
    let kept = Kept::new(&id[..2], &format!("{}.debug", &id[2..]));
    tool(
        "objcopy",
        &["--only-keep-debug", text(&whole), text(&kept.file)],
    );
    assert_eq!(passed(&of("weighed"), &program), Ok(20));
}

/// A file among the system's debug files, and the folders that were created for it; dropping this
/// removes them.
struct Kept {
    file: PathBuf,
    made: Vec<PathBuf>,
}

impl Kept {
    fn new(folder: &str, name: &str) -> Self {
        let mut made = Vec::new();
        let mut path = PathBuf::from("/usr/lib/debug");
        for part in ["", ".build-id", folder] {
            path.push(part);
            if fs::create_dir(&path).is_ok() {
                made.push(path.clone());
            }
        }
        let file = path.join(name);
        Self { file, made }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
        for folder in self.made.iter().rev() {
            let _ = fs::remove_dir(folder);
        }
    }
}

#[test]
fn functions_are_named_as_in_cpp() {
    let _cpus = cpu_lock();
    if !can_probe(&["c++"]) {
        return;
    }
    let work_folder = tempfile::tempdir().unwrap();
    let program = work_folder.path().join("shop");
    tool(
        "c++",
        &["-O1", "-o", text(&program), text(&source("shop.cpp"))],
    );
    let of = |symbol: &str| format!("{}:{symbol}", program.display());
    for (symbol, times) in [
        ("shop::price(int)", 30),
        ("shop::price(int, int)", 20),
        ("shop::price(int, int):return", 20),
        ("_ZN4shop5priceEi", 30),
        ("shop::Basket::put", 10),
        ("shop::Basket::put(int)", 10),
    ] {
        assert_eq!(passed(&of(symbol), &program), Ok(times), "{symbol}");
    }
    let error = passed(&of("shop::price"), &program).unwrap_err();
    for part in [
        "function shop::price of",
        "is ambiguous",
        "shop::price(int) (_ZN4shop5priceEi) at 0x",
        "shop::price(int, int) (_ZN4shop5priceEii) at 0x",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let error = passed(&of("price"), &program).unwrap_err();
    assert!(
        error.contains("has no function price; there is shop::price(int)"),
        "{error}"
    );
}

#[test]
fn functions_are_named_as_in_rust() {
    let _cpus = cpu_lock();
    if !can_probe(&["rustc"]) {
        return;
    }
    let work_folder = tempfile::tempdir().unwrap();
    for (mangling, program) in [("legacy", "one"), ("v0", "two")] {
        let program = work_folder.path().join(program);
        let mangling = format!("-Csymbol-mangling-version={mangling}");
        let unstable = [("RUSTC_BOOTSTRAP", "1")];
        let output = Command::new("rustc")
            .envs(unstable)
            .args([
                "-O",
                "-Zunstable-options",
                &mangling,
                "--crate-name",
                "shop",
                "-o",
            ])
            .arg(&program)
            .arg(source("shop.rs"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let of = |symbol: &str| format!("{}:{symbol}", program.display());
        assert_eq!(passed(&of("shop::till::price"), &program), Ok(30));
        let of_trait = "<shop::Basket as shop::Weigh>::weigh";
        assert_eq!(passed(&of(of_trait), &program), Ok(20));
        let error = passed(&of("till::price"), &program).unwrap_err();
        assert!(error.contains("there is shop::till::price"), "{error}");
    }
}

#[test]
fn c_library_and_programs_in_path_are_found_by_name() {
    let _cpus = cpu_lock();
    if !can_probe(&["cc"]) {
        return;
    }
    let work_folder = tempfile::tempdir().unwrap();
    let program = shop(&work_folder);
    let library = Command::new("ldconfig").arg("-p").output();
    let has_glibc =
        library.is_ok_and(|it| String::from_utf8_lossy(&it.stdout).contains("libc.so.6"));
    if !has_glibc {
        return println!("skipped: no libc.so.6 is known to the loader");
    }
    let out = work_folder.path().join("out");
    let probe = "libc.so.6:malloc";
    let output = run(&["--probe", probe, "--out", text(&out)], &program);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    // The program allocates this number of bytes forty times; other allocations are those of the C
    // library.
    let words = [
        "export",
        text(&out),
        "--to",
        "csv",
        "--output",
        "-",
        "--sensor",
        "probe/malloc",
    ];
    let rows = Command::new(OVERHEAR).args(words).output().unwrap();
    let rows = String::from_utf8(rows.stdout).unwrap();
    let heads: Vec<&str> = rows.lines().next().unwrap().split(',').collect();
    let column = heads.iter().position(|head| *head == "argument_1").unwrap();
    let own = rows
        .lines()
        .filter(|row| row.split(',').nth(column) == Some("123457"));
    assert_eq!(own.count(), 40);

    let path = std::env::var_os("PATH").unwrap();
    let folders = std::env::split_paths(&path).chain([work_folder.path().to_path_buf()]);
    let mut command = Command::new(OVERHEAR);
    command.env("PATH", std::env::join_paths(folders).unwrap());
    command.args([
        "run",
        "--quiet",
        "--json",
        "--probe",
        "shop:priced",
        "--",
        "shop",
    ]);
    let report: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    let sensor = &report["kernel_sensors"][0];
    assert_eq!(
        (&sensor["instance"], &sensor["elements"]),
        (&"shop".into(), &30.into())
    );
    for (probe, part) in [
        ("there-is-no-such-program:main", "in PATH"),
        ("libthere-is-none.so.1:main", "where the loader looks"),
        ("libc.so.6:there_is_none", "has no function there_is_none"),
    ] {
        let error = passed(probe, &program).unwrap_err();
        assert!(error.contains(part), "{error}");
    }
    if cfg!(all(target_arch = "x86_64", target_env = "gnu")) {
        let error = passed("libc.so.6:strlen", &program).unwrap_err();
        assert!(error.contains("an indirect function"), "{error}");
    }
}
