// SPDX-License-Identifier: MIT OR Apache-2.0
//! The experiments of SMCO with the range analysis: builds the paper's two programs with and
//! without the pass, makes their inputs, and runs the bench `smco` of `overhear-ranges`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::foreign_source::{unpack, Origin};
use crate::packages::{self, BUILD, RANGES, SUITES};
use crate::ranges;
use crate::shell;
use crate::workspace::Workspace;

/// Bytes of the input of bzip2, as in the paper.
const INPUT_BYTES: usize = 53_000_000;
/// Sources whose text is in the input, and which grep searches.
const TREES: [(&str, &str); 4] = [
    ("sqlite", "sqlite3"),
    ("grep", "grep"),
    ("bzip2", "bzip2"),
    ("zlib", "zlib"),
];

/// Runs all experiments; the first argument is the number of repetitions.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    packages::ensure(&[BUILD, RANGES, SUITES])?;
    let repetitions = arguments.first().map_or("10", |count| count);
    let built = workspace.target.join("release");
    let mut build = shell::cargo(&workspace.root);
    shell::run(build.args(["build", "--release", "-p", "overhear-ranges"]))?;
    ranges::build(&workspace.root, &built)?;
    let mut trees = Vec::new();
    for (name, package) in TREES {
        trees.push(unpack(&workspace.target, name, Origin::Debian(package))?);
    }
    let folder = workspace.target.join("smco");
    fs::create_dir_all(&folder)?;
    let input = folder.join("input");
    fs::write(&input, mixed_input(&trees, &built)?)?;
    let mut bench = shell::cargo(&workspace.root);
    bench.args([
        "bench",
        "-q",
        "-p",
        "overhear-ranges",
        "--bench",
        "smco",
        "--",
    ]);
    bench.arg(repetitions);
    bench.arg(workspace.root.join("docs/experiments/smco.md"));
    let bzip2 = Program {
        source: &trees[2],
        build: "make CC=$CC CFLAGS=\"$CFLAGS -D_FILE_OFFSET_BITS=64\" libbz2.a bzip2.o \
                && $CC $CFLAGS bzip2.o libbz2.a -o bzip2",
        program: "bzip2",
    };
    let input = input.display();
    bench.arg(format!(
        "bzip2=\"$PROGRAM\" -9kc {input} > \"$SCRATCH/bz2\" \
         && \"$PROGRAM\" -dc \"$SCRATCH/bz2\"={}={}",
        bzip2.build(&folder.join("bzip2-plain"), Path::new("clang-19"))?,
        bzip2.build(
            &folder.join("bzip2-instrumented"),
            &built.join("overhear-clang")
        )?,
    ));
    let grep = Program {
        source: &trees[1],
        // Debian's patches make the generated files look older than their sources. The manual needs
        // tools that the program does not.
        build: "touch aclocal.m4 && touch config.hin configure && \
                find . -name Makefile.in -exec touch {} + && \
                ./configure --disable-nls && make -C lib && make -C src",
        program: "src/grep",
    };
    // Status 1 is no line found. The tree is searched eight times, because one search takes a
    // tenth of a second of CPU time.
    let search = "\"$PROGRAM\" -r 'an[a-z]* uncommon[a-z ]*pattern'";
    bench.arg(format!(
        "grep={search}{}; test $? -le 1={}={}",
        format!(" {}", workspace.target.join("foreign").display()).repeat(8),
        grep.build(&folder.join("grep-plain"), Path::new("clang-19"))?,
        grep.build(
            &folder.join("grep-instrumented"),
            &built.join("overhear-clang")
        )?,
    ));
    shell::run(&mut bench)
}

/// A program of another project.
struct Program<'a> {
    source: &'a Path,
    /// A line of the shell, with `$CC` and `$CFLAGS`.
    build: &'a str,
    program: &'a str,
}

impl Program<'_> {
    /// Builds it in a folder of its own; returns its path.
    fn build(&self, folder: &Path, compiler: &Path) -> Result<String> {
        let program = folder.join(self.program);
        let _ = fs::remove_dir_all(folder);
        shell::output(Command::new("cp").arg("-a").arg(self.source).arg(folder))?;
        let mut build = Command::new("sh");
        build
            .current_dir(folder)
            .env("CC", compiler)
            .env("CFLAGS", "-O2 -g")
            .args(["-c", self.build]);
        shell::output(&mut build)?;
        Ok(program.display().to_string())
    }
}

/// Text, machine code and random bytes, in pieces of a megabyte: what bzip2 does differs between
/// them.
fn mixed_input(trees: &[PathBuf], built: &Path) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    for tree in trees {
        let mut list = Command::new("find");
        list.arg(tree).args(["-name", "*.[ch]", "-type", "f"]);
        let list = shell::output(&mut list)?;
        let mut files: Vec<&str> = list.lines().collect();
        files.sort_unstable();
        for file in files {
            text.extend(fs::read(file).unwrap_or_default());
        }
    }
    let code = fs::read(built.join("liboverhear_ranges.a"))?;
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut input = Vec::with_capacity(INPUT_BYTES);
    let piece = 1 << 20;
    let mut texts = text.chunks(piece).cycle();
    let mut codes = code.chunks(piece).cycle();
    for number in 0_u32.. {
        if input.len() >= INPUT_BYTES {
            break;
        }
        match number % 10 {
            // Two of ten pieces are machine code, one is random.
            3 | 6 => input.extend(codes.next().context("there is no machine code")?),
            9 => input.extend((0..piece / 8).flat_map(|_| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random.to_le_bytes()
            })),
            _ => input.extend(texts.next().context("there is no text")?),
        }
    }
    input.truncate(INPUT_BYTES);
    Ok(input)
}
