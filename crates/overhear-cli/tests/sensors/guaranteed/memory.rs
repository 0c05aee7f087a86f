// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of a guaranteed monitor is stated before the start; the use of more is a breach.

use serde_json::Value;

use super::{alone, file, is_held, lacks_guarantee, run, witnessed, FILE};
use crate::program::number;
use crate::support::{finish, folder, overhear, path, plugin, Ended};
use crate::witness::keeps;

#[test]
fn stated_memory_is_not_exceeded() {
    let _alone = alone();
    let (_folder, file) = file(&FILE.replace("EXECUTOR", "auto"));
    let admitted = finish(&mut overhear(&["admit", "--config", path(&file), "--json"]));
    let admitted: Value = serde_json::from_str(&admitted.stdout).unwrap();
    let stated = number(&admitted, "memory_bytes");
    let ((ended, report), machine) = witnessed(|| run(&FILE.replace("EXECUTOR", "auto"), &[]));
    let guarantee = &report["guarantee"];
    let taken = number(guarantee, "memory_bytes");
    assert!(taken > 0, "{guarantee:#}");
    if guarantee["executor"] == "best_effort" {
        return keeps(|| lacks_guarantee(&ended, &machine));
    }
    assert_eq!(number(guarantee, "stated_memory_bytes"), stated);
    assert!(taken <= stated, "{taken} of {stated}");
    // Stated for elements of 256 bytes, and these have 8: with the correct size it is closer.
    let exact = FILE
        .replace("EXECUTOR", "auto")
        .replace("\"eager\"", "\"eager\"\n    payload = 8");
    let (_, report) = run(&exact, &[]);
    let guarantee = &report["guarantee"];
    let (taken, stated) = (
        number(guarantee, "memory_bytes"),
        number(guarantee, "stated_memory_bytes"),
    );
    assert!(taken <= stated && 3 * taken > stated, "{taken} of {stated}");
    // Sensors that use more memory than the file states cause a breach.
    let small = exact.replace("payload = 8", "payload = 8\n    buffer = 500");
    let (ended, report) = run(&small, &[]);
    let stated = number(&report["guarantee"], "stated_memory_bytes");
    assert!(stated < taken, "{stated} are stated, {taken} are taken");
    exceeds(&ended, &report, "its sensors take ");
}

/// The monitor used more memory than stated, and the message names the update.
fn exceeds(ended: &Ended, report: &Value, whose: &str) {
    let guarantee = &report["guarantee"];
    let found = guarantee["reasons"].as_array().unwrap();
    let messages = |it: &Value| {
        let message = it.as_str().unwrap();
        message.contains("bytes of memory, ") && message.contains(whose)
    };
    assert!(found.iter().any(messages), "{guarantee:#}");
    assert_eq!(
        (ended.status, &guarantee["verdict"]),
        (3, &"inconclusive".into()),
        "{guarantee:#}"
    );
    assert!(
        guarantee["since_ns"].is_u64(),
        "the instant is named: {guarantee:#}"
    );
}

#[test]
fn memory_of_plug_ins_is_stated_and_counted() {
    let _alone = alone();
    let folder = folder();
    let source = "crates/overhear-cli/tests/sensors/hoard.c";
    let library = folder.path().join("hoard.so");
    let Some(plugin) = plugin("gcc", "-std=c11", source, &library) else {
        return;
    };
    let text = |when: &str, more: &str| {
        let line = format!("plugin = \"{}=WHEN\"", path(&plugin)).replace("WHEN", when);
        let exact = FILE.replace("\"eager\"", "\"eager\"\n    payload = 8");
        let own = exact.replace("field = \"number\"", &format!("{line}\n    {more}"));
        own.replace("EXECUTOR", "auto")
    };
    let admit = |text: &str| {
        let (_folder, file) = file(text);
        let ended = finish(&mut overhear(&["admit", "--config", path(&file), "--json"]));
        let answer: Value = serde_json::from_str(&ended.stdout).unwrap_or_default();
        (ended, answer)
    };
    const MIB: u64 = 1 << 20;
    // Stated memory: that of its creation and a MiB more, or the size in the file, and the plug-in
    // itself.
    let (_, small) = admit(&text("create 0", ""));
    let (_, large) = admit(&text("create 8192", ""));
    let (_, messages) = admit(&text("create 8192", "memory = 16777216"));
    let plugins = |answer: &Value| number(answer, "plugin_memory_bytes");
    assert!(
        plugins(&small) > MIB && plugins(&small) < 2 * MIB,
        "{small:#}"
    );
    let created = plugins(&large) - plugins(&small);
    assert!((8 * MIB..9 * MIB).contains(&created), "{created}");
    assert!(
        plugins(&messages) > 16 * MIB && plugins(&messages) < 17 * MIB,
        "{messages:#}"
    );
    let others = |answer: &Value| number(answer, "memory_bytes") - plugins(answer);
    assert_eq!(others(&small), others(&messages));
    // Refused if it is known before the start.
    let (ended, answer) = admit(&text("create 8192", "memory = 1048576"));
    assert_eq!((ended.status, &answer["accepted"]), (4, &false.into()));
    let reason = answer["reason"].as_str().unwrap();
    let words = "update `numbers` takes 83";
    assert!(
        reason.starts_with(words) && reason.contains("its `memory` is 1048576; give at least"),
        "{reason}"
    );
    let (ended, _) = admit(
        &FILE
            .replace("EXECUTOR", "auto")
            .replace("field", "memory = 1\nfield"),
    );
    ended.has_message(
        2,
        &["update `numbers` has a `memory`, which is for updates of plug-ins"],
    );

    // Memory that the update takes for a sensor, in its warm-up, or in evaluation is found as well.
    for (when, memory, is_more) in [
        ("create 8192", "", false),
        ("open 8192", "", true),
        ("warm_up 8192", "", true),
        ("element 8192", "", true),
        ("element 8192", "memory = 9437184", false),
    ] {
        keeps(|| {
            let ((ended, report), machine) = witnessed(|| run(&text(when, memory), &[]));
            let guarantee = &report["guarantee"];
            if guarantee["executor"] == "best_effort" {
                return lacks_guarantee(&ended, &machine);
            }
            if guarantee["begun_ns"] == Value::Null {
                return is_held(&report, &machine);
            }
            let taken = number(guarantee, "memory_bytes");
            let stated = number(guarantee, "stated_memory_bytes");
            assert!(taken > 8 * MIB, "{when}: {guarantee:#}");
            assert_eq!(taken > stated, is_more, "{when}: {taken} of {stated}");
            let update = &guarantee["updates"][0];
            assert!(number(update, "memory_bytes") >= 8 * MIB, "{update:#}");
            if is_more {
                exceeds(&ended, &report, "update `numbers` took ");
            }
            Ok(())
        });
    }
}
