// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the compiler wrapper adds to a command line of clang.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The language of the linker: whose standard library is linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// clang
    C,
    /// clang++
    Cxx,
}

impl Language {
    /// The compiler's name on PATH.
    #[must_use]
    pub const fn compiler(self) -> &'static str {
        match self {
            Self::C => "clang-19",
            Self::Cxx => "clang++-19",
        }
    }
}

/// The files that the wrapper needs.
#[derive(Clone, Debug)]
pub struct Parts {
    /// The plug-in for clang.
    pub pass: PathBuf,
    /// What each instrumented program contains.
    pub program: PathBuf,
    /// What each instrumented shared library contains.
    pub library: PathBuf,
    /// The runtime.
    pub runtime: PathBuf,
}

/// A part that is not installed.
#[derive(Debug, thiserror::Error)]
#[error(
    "{part} of the range analysis was not found in {folders}; install Overhear with the Debian \
     package llvm-19-dev present, or name the folder in OVERHEAR_RANGES_LIB"
)]
pub struct MissingPart {
    part: String,
    folders: String,
}

impl Parts {
    /// The files' names.
    pub const NAMES: [&'static str; 4] = [
        "overhear_ranges_pass.so",
        "liboverhear_ranges_program.a",
        "liboverhear_ranges_library.a",
        "liboverhear_ranges.a",
    ];

    /// Finds the parts: in `OVERHEAR_RANGES_LIB`, in `../lib/overhear/ranges` of this program's
    /// folder, or in the folder `ranges` next to it.
    ///
    /// # Errors
    /// One is missing.
    pub fn find() -> Result<Self, MissingPart> {
        let folders = folders();
        let has_all = |folder: &&PathBuf| Self::NAMES.iter().all(|n| folder.join(n).is_file());
        if let Some(folder) = folders.iter().find(has_all) {
            return Ok(Self::of(folder));
        }
        let lacking = |name: &&&str| !folders.iter().any(|folder| folder.join(name).is_file());
        let part = Self::NAMES.iter().find(lacking).unwrap_or(&Self::NAMES[0]);
        Err(missing(part, &folders))
    }

    /// The parts in a folder.
    #[must_use]
    pub fn of(folder: &Path) -> Self {
        let [pass, program, library, runtime] = Self::NAMES.map(|name| folder.join(name));
        Self {
            pass,
            program,
            library,
            runtime,
        }
    }
}

/// The runtime as a shared library, for programs that do not contain it: in the folders of
/// [`Parts::find`], or next to this program.
///
/// # Errors
/// It is in none of them.
pub fn runtime_library() -> Result<PathBuf, MissingPart> {
    let mut folders = folders();
    if let Some(own) = std::env::current_exe()
        .ok()
        .as_deref()
        .and_then(Path::parent)
    {
        folders.push(own.to_owned());
    }
    let mut files = folders.iter().map(|folder| folder.join(RUNTIME_LIBRARY));
    files
        .find(|file| file.is_file())
        .ok_or_else(|| missing(RUNTIME_LIBRARY, &folders))
}

/// File of the runtime as a shared library.
const RUNTIME_LIBRARY: &str = "liboverhear_ranges.so";

fn folders() -> Vec<PathBuf> {
    if let Some(named) = std::env::var_os("OVERHEAR_RANGES_LIB") {
        return vec![PathBuf::from(named)];
    }
    let own = std::env::current_exe().ok();
    let own = own
        .as_deref()
        .and_then(Path::parent)
        .unwrap_or(Path::new("."));
    vec![own.join("../lib/overhear/ranges"), own.join("ranges")]
}

fn missing(part: &str, folders: &[PathBuf]) -> MissingPart {
    let shown: Vec<_> = folders
        .iter()
        .map(|folder| folder.display().to_string())
        .collect();
    MissingPart {
        part: part.to_owned(),
        folders: shown.join(" and "),
    }
}

/// Options whose value is the next argument.
const WITH_VALUE: [&str; 29] = [
    "-o",
    "-x",
    "-I",
    "-L",
    "-D",
    "-U",
    "-l",
    "-T",
    "-u",
    "-z",
    "-e",
    "-B",
    "-F",
    "-MF",
    "-MT",
    "-MQ",
    "-MJ",
    "-include",
    "-imacros",
    "-isystem",
    "-idirafter",
    "-iquote",
    "-isysroot",
    "-Xlinker",
    "-Xclang",
    "-Xassembler",
    "-Xpreprocessor",
    "-target",
    "-mllvm",
];

/// Options with which clang does not link.
const NO_LINK: [&str; 13] = [
    "-c",
    "-S",
    "-E",
    "-M",
    "-MM",
    "-fsyntax-only",
    "--analyze",
    "-emit-ast",
    "-###",
    "--version",
    "--help",
    "-r",
    "-dumpversion",
];

/// Options with which the standard libraries are not linked: neither is the runtime.
const FREESTANDING: [&str; 2] = ["-nostdlib", "-nodefaultlibs"];

/// The command line of clang for one of the wrapper.
#[must_use]
pub fn arguments(given: &[OsString], parts: &Parts) -> Vec<OsString> {
    let mut has_input = false;
    let mut is_linking = true;
    let mut is_shared = false;
    let mut skip = false;
    for argument in given {
        let text = argument.to_string_lossy();
        if std::mem::take(&mut skip) {
            continue;
        }
        skip = WITH_VALUE.contains(&&*text);
        has_input |= text == "-" || !text.starts_with('-');
        is_shared |= text == "-shared" || text == "--shared";
        is_linking &= !NO_LINK.contains(&&*text) && !FREESTANDING.contains(&&*text);
        is_linking &= !text.starts_with("-print-");
    }
    let mut result = Vec::with_capacity(given.len() + 24);
    let mut add = |arguments: &[&str]| result.extend(arguments.iter().map(OsString::from));
    // Before the arguments that were given, so that these can switch debug information off.
    let mut pass = OsString::from("-fpass-plugin=");
    pass.push(&parts.pass);
    add(&["--start-no-unused-arguments", "-g"]);
    result.push(pass);
    result.push("--end-no-unused-arguments".into());
    result.extend(given.iter().cloned());
    if !has_input || !is_linking {
        return result;
    }
    // Through the linker's own option: clang would take them for sources after `-x c`.
    let mut link = |argument: &std::ffi::OsStr| {
        result.push("-Xlinker".into());
        result.push(argument.to_owned());
    };
    if is_shared {
        link(parts.library.as_os_str());
        return result;
    }
    // Libraries that are instrumented use the runtime of the program.
    for name in ["register", "unregister", "pass"] {
        link(format!("--export-dynamic-symbol=overhear_ranges_{name}").as_ref());
    }
    link(parts.program.as_os_str());
    link(parts.runtime.as_os_str());
    for argument in [
        "--push-state",
        "--as-needed",
        "-lpthread",
        "-ldl",
        "-lm",
        "--pop-state",
    ] {
        link(argument.as_ref());
    }
    result
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::path::Path;

    use super::{arguments, Parts};

    #[track_caller]
    fn links(given: &str, expected: &str) {
        let given: Vec<OsString> = given.split(' ').map(OsString::from).collect();
        let all = arguments(&given, &Parts::of(Path::new("/p")));
        let linked = |name: &str| {
            all.iter()
                .any(|a| a == &*format!("/p/liboverhear_ranges_{name}.a"))
        };
        let seen = match (linked("program"), linked("library")) {
            (true, false) => "program",
            (false, true) => "library",
            (false, false) => "nothing",
            (true, true) => "both",
        };
        assert_eq!(seen, expected, "{given:?}");
        assert!(all
            .iter()
            .any(|a| a == "-fpass-plugin=/p/overhear_ranges_pass.so"));
    }

    #[test]
    fn programs_and_libraries_get_their_part_and_objects_nothing() {
        links("-O2 a.c -o a", "program");
        links("a.o b.o", "program");
        links("-x c -", "program");
        links("-shared a.o -o liba.so", "library");
        links("-c a.c", "nothing");
        links("-E -", "nothing");
        links("--version", "nothing");
        links("-v", "nothing");
        links("-o a -I b", "nothing");
        links("-print-search-dirs a.c", "nothing");
        links("-nostdlib a.c", "nothing");
        links("-r a.o b.o -o c.o", "nothing");
    }
}
