// SPDX-License-Identifier: MIT OR Apache-2.0
//! All memory is ready at the first element of a guarantee: plug-ins in C, C++ and Rust count the
//! page faults of the evaluating thread.

use std::path::{Path, PathBuf};
use std::process::Command;

use overhear_event::Nanos;
use overhear_monitor::executor::Terms;
use overhear_monitor::plugin::{Plugin, PluginUpdate, ResultValue};

use crate::admitted::{lasting, run, terms};
use crate::alone;
use crate::deadline::{lateness, may_reserve};
use crate::excuse::refused;
use crate::rings::rings;
use crate::witness::{keeps, Doubt, Excuse, Witness};

/// Compiles a plug-in of the tests; `None` if there is no compiler.
fn compiled(compiler: &str, standard: &str, source: &str) -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let name = format!("{}-{compiler}.so", source.replace('.', "-"));
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let output = Command::new(compiler)
        .args([standard, "-Wall", "-Wextra", "-Werror", "-O2"])
        .args(["-shared", "-fPIC", "-I"])
        .arg(here.join("../../include"))
        .arg(here.join("tests/plugins").join(source))
        .arg("-o")
        .arg(&place)
        .output();
    let Ok(output) = output else {
        println!("skipped: the compiler {compiler} is not installed");
        return None;
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    Some(place)
}

/// The plug-in in Rust, which cargo builds with the tests.
fn in_rust() -> Option<PathBuf> {
    let here = std::env::current_exe().unwrap();
    let built = here.parent().unwrap().parent().unwrap();
    let plugin = built.join("examples/libgreedy.so");
    if !plugin.exists() {
        println!("skipped: the examples are not built; type `cargo build --examples`");
        return None;
    }
    Some(plugin)
}

/// A result that is a number.
fn numeric_result(update: &mut PluginUpdate, key: &str) -> i64 {
    let results = update.report();
    let found = results
        .iter()
        .find_map(|(it, numeric_result)| match numeric_result {
            ResultValue::Unsigned(value) if it == key => i64::try_from(*value).ok(),
            ResultValue::Signed(value) if it == key => Some(*value),
            _ => None,
        });
    found.unwrap_or_else(|| panic!("it has no result `{key}`"))
}

#[test]
fn first_element_of_a_guarantee_finds_all_memory_mapped() {
    let _alone = alone();
    if !may_reserve() {
        return;
    }
    let terms = terms(Nanos::from_ms(50), lateness());
    let plugins = [
        compiled("gcc", "-std=c11", "greedy.c"),
        compiled("clang-19", "-std=c11", "greedy.c"),
        compiled("g++", "-std=c++17", "greedy.cpp"),
        in_rust(),
    ];
    for place in plugins.into_iter().flatten() {
        keeps(|| first_elements(&terms, &place));
    }
}

/// Guarantees an update of a plug-in, and returns the page faults of its first elements.
fn first_elements(terms: &Terms, plugin: &Path) -> Result<(), Doubt> {
    let witness = Witness::start();
    let mut made = Plugin::load(plugin).unwrap().create(None, "").unwrap();
    let mut update = made.remove(0);
    let (mut writers, source) = rings(&[("a", 512), ("b", 512)]);
    let mut last = lasting(Nanos::from_ms(100));
    let mut calls = 0;
    let ended = run(terms, source, &mut update, |monitor, guarantee| {
        // No element came before the guarantee began.
        if calls < 3 {
            writers[0].write(calls);
            calls += 1;
        }
        last(monitor, guarantee) || monitor.elements() < 3
    });
    let machine = witness.stop();
    ended.map_err(|refusal| refused(&refusal, &machine))?;
    let place = plugin.display();
    assert_eq!(numeric_result(&mut update, "elements"), 3, "{place}");
    let warmed = (
        numeric_result(&mut update, "warmed"),
        numeric_result(&mut update, "before"),
    );
    assert_eq!(warmed, (1, 0), "{place}");
    let faults = (
        numeric_result(&mut update, "first"),
        numeric_result(&mut update, "faults"),
    );
    if faults == (0, 0) {
        return Ok(());
    }
    // An access to a page that the kernel moves meanwhile faults, even if the page is locked.
    Err(Doubt {
        excuse: Excuse::seen(machine.moved_pages()),
        reasons: format!("{place}: {faults:?} page faults"),
    })
}
