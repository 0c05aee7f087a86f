// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranges and numbers of updates equal those that a program records by itself in its source.

use std::process::Command;

use tempfile::TempDir;

use crate::tools::{compile, inside, parts, program, run, succeed, variable, LEVELS};

#[test]
fn full_observation_equals_the_oracle_and_a_budget_stays_inside() {
    if parts().is_none() {
        return;
    }
    let folder = TempDir::new().unwrap();
    let source = program("oracle.c");
    let oracle = folder.path().join("oracle");
    let mut plain = Command::new("clang-19");
    succeed(
        plain
            .args(["-O1", "-DORACLE"])
            .arg(&source)
            .arg("-o")
            .arg(&oracle),
    );
    let expected = succeed(&mut Command::new(&oracle));
    assert!(expected.lines().count() >= 15, "{expected}");
    for level in LEVELS {
        let (with, _) = compile(folder.path(), &source, &[level]);
        let (_, full) = run(&with, Some("full"), &[]);
        for line in expected.lines() {
            let [name, low, high, updates] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("{line}");
            };
            let observed = variable(&full, name).1;
            let range = (low.parse().unwrap(), high.parse().unwrap());
            assert_eq!(observed.range, Some(range), "{level} {name}");
            let updates: u64 = updates.parse().unwrap();
            assert_eq!(observed.updates, updates, "{level} {name}");
            assert_eq!(
                observed.interval(),
                (updates as f64, updates as f64),
                "{level} {name}"
            );
            assert_eq!(observed.share(), Some(1.0), "{level} {name}");
        }
        // What the oracle does not record: an atomic variable, a loop counter, a parameter.
        assert_eq!(variable(&full, "atomic").1.range, Some((-4, 5)), "{level}");
        assert_eq!(variable(&full, "i").1.range, Some((0, 40)), "{level}");
        assert_eq!(variable(&full, "j").1.range, Some((0, 10)), "{level}");
        let (declaration, _) = variable(&full, "without_tag.member");
        assert_eq!(
            (declaration.type_name.as_str(), declaration.bits),
            ("long", 64),
            "{level}"
        );
        let (_, sampled) = run(&with, Some("0.05"), &[]);
        inside(&sampled, &full, level);
    }
}

#[test]
fn estimated_updates_cover_the_true_number() {
    if parts().is_none() {
        return;
    }
    let folder = TempDir::new().unwrap();
    let (with, _) = compile(folder.path(), &program("threads.c"), &["-O2", "-pthread"]);
    let (_, full) = run(&with, Some("full"), &[]);
    let (_, sampled) = run(&with, Some("0.1"), &[]);
    for name in ["next", "j"] {
        let (truth, seen) = (variable(&full, name).1, variable(&sampled, name).1);
        assert!(
            seen.updates <= truth.updates,
            "{name}: {seen:?}, not {truth:?}"
        );
        // The interval is one of 95 %: a hundredth more makes a false alarm improbable.
        let (low, high) = seen.interval();
        let truth = truth.updates as f64;
        assert!(
            low * 0.95 <= truth && truth <= high * 1.05,
            "{name}: {low} {truth} {high}"
        );
    }
}
