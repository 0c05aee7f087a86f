// SPDX-License-Identifier: MIT OR Apache-2.0
//! Updates of plug-ins: the same one in three languages, live and over the recording, and the
//! messages for faulty updates.

use std::path::{Path, PathBuf};

use serde_json::{json, Value};

use crate::program::program;
use crate::support::{finish, folder, overhear, path, plugin, report_json, run_json, Ended};

/// A plug-in in Rust, which cargo builds with the tests.
pub(crate) fn in_rust(name: &str) -> Option<PathBuf> {
    let here = std::env::current_exe().unwrap();
    let built = here.parent().unwrap().parent().unwrap();
    let plugin = built.join(format!("examples/lib{name}.so"));
    if !plugin.exists() {
        println!("skipped: the examples are not built; type `cargo build --examples`");
        return None;
    }
    Some(plugin)
}

/// The plug-ins of the example, in each available language.
fn examples(folder: &Path) -> Vec<PathBuf> {
    let example = |ending| format!("examples/updates/late_elements.{ending}");
    let compiled = [
        plugin("gcc", "-std=c11", &example("c"), &folder.join("c.so")),
        plugin(
            "clang-19",
            "-std=c11",
            &example("c"),
            &folder.join("clang.so"),
        ),
        plugin("g++", "-std=c++17", &example("cpp"), &folder.join("cpp.so")),
        in_rust("late_elements"),
    ];
    compiled.into_iter().flatten().collect()
}

/// `--update` for each.
fn options(specifications: &[String]) -> Vec<&str> {
    let options = specifications.iter();
    options.flat_map(|it| ["--update", it.as_str()]).collect()
}

#[track_caller]
fn updates(report: &Value) -> &Vec<Value> {
    report["updates"].as_array().unwrap()
}

#[test]
fn update_has_equal_results_in_all_languages_live_and_recorded() {
    let folder = folder();
    let plugins = examples(folder.path());
    // Later than a nanosecond after its predecessor is every element but the first.
    let specifications: Vec<String> = plugins
        .iter()
        .map(|plugin| format!("{}:late_elements=1", path(plugin)))
        .collect();
    let out = folder.path().join("out");
    let mut flags = vec!["--kernel", "off", "--out", path(&out)];
    flags.extend(options(&specifications));
    let (ended, live) = run_json(&flags, &[path(program()), "paced", "50"]);
    assert_eq!(ended.status, 0, "{ended:#?}");
    assert_eq!(updates(&live).len(), plugins.len());
    let first = &updates(&live)[0]["results"];
    for (update, plugin) in updates(&live).iter().zip(&plugins) {
        assert_eq!(update["name"], "late_elements");
        assert_eq!(update["file"], path(plugin));
        assert_eq!(update["argument"], "1");
        assert_eq!(update["state"], "finished", "{update:#}");
        assert_eq!(update["message"], Value::Null);
        assert_eq!(update["elements"], 50);
        assert_eq!(update["missed"], 0);
        assert_eq!(&update["results"], first, "{}", path(plugin));
        assert_eq!(update["results"]["late"], 49);
        // Each pause of the program is a millisecond at least.
        assert!(update["results"]["longest_ns"].as_u64().unwrap() >= 1_000_000);
    }
    // The recording contains the live results, and yields the same again.
    assert_eq!(report_json(&out).1["updates"], live["updates"]);
    let mut again = vec!["report", path(&out), "--json"];
    again.extend(options(&specifications));
    let again = finish(&mut overhear(&again));
    assert_eq!(again.status, 0, "{again:#?}");
    let again: Value = serde_json::from_str(&again.stdout).unwrap();
    assert_eq!(again["updates"], live["updates"]);
    assert_eq!(again, live);
}

#[test]
fn sensors_of_an_update_are_needed() {
    let folder = folder();
    let source = "examples/updates/late_elements.c";
    let Some(plugin) = plugin("gcc", "-std=c11", source, &folder.path().join("late.so")) else {
        return;
    };
    let update = format!("{}:late_elements=1", path(&plugin));
    let command = [path(program()), "paced", "20"];
    let elements = |options: &[&str]| {
        let (ended, report) = run_json(options, &command);
        ended.does_not_panic();
        report["sensors"][0]["elements"].as_u64().unwrap()
    };
    let flags = ["--kernel", "off", "--disable-unused"];
    assert_eq!(elements(&flags), 0);
    assert_eq!(elements(&[&flags[..], &["--update", &update]].concat()), 20);
}

/// Runs the program under an update of `updates.cpp`; `None` without a compiler.
fn run_update(name: &str) -> Option<(Ended, Value, Ended)> {
    let folder = folder();
    let library = folder.path().join("updates.so");
    let source = "crates/overhear-cli/tests/sensors/updates.cpp";
    let plugin = plugin("g++", "-std=c++17", source, &library)?;
    let specification = format!("{}:{name}", path(&plugin));
    let out = folder.path().join("out");
    let flags = [
        "--kernel",
        "off",
        "--update",
        &specification,
        "--out",
        path(&out),
    ];
    let (ended, report) = run_json(&flags, &[path(program()), "paced", "5"]);
    let text = finish(&mut overhear(&["report", path(&out)]));
    Some((ended, report, text))
}

#[test]
fn update_reads_payloads_of_its_type_and_returns_any_result() {
    let Some((ended, report, text)) = run_update("typed=hello, world") else {
        return;
    };
    assert_eq!(ended.status, 0, "{ended:#?}");
    let update = &updates(&report)[0];
    let expected = json!({
        "sum": 10, "said": "hello, world", "streams": 1, "of_a_program": 1,
        "half": 0.5, "below": -3, "document": {"list": [1, 2]},
    });
    assert_eq!(update["results"], expected);
    let shown = "update typed = hello, world: finished, 5 elements, 0 missed\n  below: -3\n";
    assert!(text.stdout.contains(shown), "{}", text.stdout);
    assert!(
        text.stdout.contains("\n  said: hello, world\n"),
        "{}",
        text.stdout
    );
}

#[test]
fn error_in_an_update_is_one_message_with_its_name() {
    let cases = [
        (
            "throwing",
            "failed",
            "`element` failed: the third is too much",
        ),
        ("silent", "failed", "`element` failed: it returned 7"),
    ];
    for (name, state, words) in cases {
        let Some((ended, report, text)) = run_update(name) else {
            return;
        };
        assert_eq!(ended.status, 3, "{ended:#?}");
        ended.does_not_panic();
        let update = &updates(&report)[0];
        assert_eq!(update["state"], state);
        assert_eq!(report["complete"], false);
        // Other updates continue: they evaluated every element.
        assert_eq!(report["sensors"][0]["elements"], 5);
        let message = update["message"].as_str().unwrap();
        assert!(
            message.contains(&format!("updates.so: update `{name}`: ")),
            "{message}"
        );
        assert!(message.ends_with(words), "{message}");
        assert!(text.stdout.contains(words), "{}", text.stdout);
    }
    for (name, words) in [
        (
            "mistyped",
            "update `mistyped` evaluates type `sample` of 24 bytes (load F64, number U64",
        ),
        (
            "careless",
            "update `careless`: its result `broken` is no JSON: ",
        ),
    ] {
        let Some((ended, report, _)) = run_update(name) else {
            return;
        };
        assert_eq!(ended.status, 3, "{ended:#?}");
        let complaints = updates(&report)[0]["complaints"].as_array().unwrap();
        assert_eq!(complaints.len(), 1);
        let message = complaints[0].as_str().unwrap();
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn unloadable_plug_in_is_refused_before_the_program_runs() {
    let folder = folder();
    let at = |name: &str| path(&folder.path().join(name)).to_string();
    let refused = |specification: &str, words: &[&str]| {
        let proof = at("proof");
        let arguments = ["run", "--kernel", "off", "--update", specification];
        let arguments = [&arguments[..], &["--", "touch", &proof]].concat();
        finish(&mut overhear(&arguments)).has_only_message(2, words);
        assert!(!Path::new(&proof).exists(), "the program was run");
    };
    let missing = at("missing.so");
    refused(
        &missing,
        &["plug-in", &missing, "does not load", "No such file"],
    );
    let text = at("text.so");
    std::fs::write(
        &text,
        "this is no shared object
"
        .repeat(100),
    )
    .unwrap();
    refused(&text, &["plug-in", &text, "does not load", "ELF"]);

    let build = |name: &str, code: &str| {
        let source = at(&format!("{name}.c"));
        std::fs::write(&source, code).unwrap();
        plugin(
            "gcc",
            "-std=c11",
            &source,
            Path::new(&at(&format!("{name}.so"))),
        )
    };
    let header = "#include <overhear/update.h>\n";
    // Symbols are resolved at once: a missing one is found here, not at the first call.
    let unresolved = "extern int nowhere(void);\nint here(void) { return nowhere(); }\n";
    let update = "static void *create(oh_host *h, const char *a) { (void)h, (void)a; return 0; }
        static int element(void *s, oh_host *h, const oh_element_view *e)
        { (void)s, (void)h, (void)e; return 0; }\n";
    let table = |fields: &str| {
        format!(
            "{header}{update}void use(void); void use(void) {{ (void)create; (void)element; }}
            static const oh_update one = {{ .size = sizeof(oh_update), {fields} }};
            OH_EXPORT_UPDATES(&one)"
        )
    };
    let functions = ".create = create, .element = element";
    let cases = [
        (
            "unresolved",
            unresolved.to_string(),
            &["does not load", "nowhere"][..],
        ),
        (
            "plain",
            "int a;".to_string(),
            &["lacks the function `oh_plugin_v1`"],
        ),
        (
            "null",
            format!("{header}const oh_plugin *oh_plugin_v1(void) {{ return 0; }}"),
            &["`oh_plugin_v1`: it returns no table"],
        ),
        (
            "newer",
            format!(
                "{header}const oh_plugin *oh_plugin_v1(void) {{
            static const oh_plugin plugin = {{sizeof plugin, 2, 0, 0, 0}}; return &plugin; }}"
            ),
            &["of version 2", "this program has 1"],
        ),
        (
            "empty",
            format!(
                "{header}const oh_plugin *oh_plugin_v1(void) {{
            static const oh_plugin plugin = {{sizeof plugin, 1, 0, 0, 0}}; return &plugin; }}"
            ),
            &["its table has no updates"],
        ),
        ("nameless", table(functions), &["update 1: it has no name"]),
        (
            "useless",
            table(".name = \"idle\""),
            &["update `idle`: `create` and `element` are required"],
        ),
        (
            "untyped",
            table(&format!(".name = \"odd\", .field_count = 1, {functions}")),
            &["update `odd`: it names fields, but not their `type`"],
        ),
        (
            "failing",
            table(&format!(".name = \"none\", {functions}")),
            &["update `none` cannot be created: `create` returned NULL"],
        ),
    ];
    for (name, code, words) in cases {
        let Some(plugin) = build(name, &code) else {
            return;
        };
        let library = path(&plugin).to_string();
        refused(&library, &[&["plug-in", library.as_str()], words].concat());
    }
    let example = "examples/updates/late_elements.c";
    let Some(example) = plugin("gcc", "-std=c11", example, Path::new(&at("c.so"))) else {
        return;
    };
    let example = path(&example);
    refused(
        &format!("{example}:other"),
        &["has no update `other`; it has `late_elements`"],
    );
    refused(
        &format!("{example}=soon"),
        &["`late_elements` cannot be created", "nanoseconds"],
    );
    if let Some(rust) = in_rust("late_elements") {
        refused(
            &format!("{}=soon", path(&rust)),
            &["cannot be created", "nanoseconds"],
        );
    }
    let source = "crates/overhear-cli/tests/sensors/updates.cpp";
    if let Some(cpp) = plugin("g++", "-std=c++17", source, Path::new(&at("cpp.so"))) {
        refused(
            &format!("{}:lost", path(&cpp)),
            &["update `lost`", "is not a pattern"],
        );
    }
}

#[test]
fn plug_in_distribution_is_drawn_live_and_recorded() {
    let folder = folder();
    let source = "examples/updates/distances.c";
    let library = folder.path().join("distances.so");
    let Some(plugin) = plugin("gcc", "-std=c11", source, &library) else {
        return;
    };
    let out = folder.path().join("out");
    // Powers of two, and buckets of a width: the two kinds.
    let linear = format!("{}=1000000", path(&plugin));
    let options = [
        "--kernel",
        "off",
        "--out",
        path(&out),
        "--update",
        path(&plugin),
        "--update",
        &linear,
    ];
    let (ended, report) = run_json(&options, &[path(program()), "paced", "40"]);
    let drawn = |report: &Value| {
        let all = report["histograms"].as_array().unwrap().iter();
        let own = all.filter(|it| it["title"] == "distances: distances");
        own.cloned().collect::<Vec<Value>>()
    };
    let own = drawn(&report);
    assert_eq!(own.len(), 2, "{ended:#?} {report:#}");
    let widths = own.iter().map(|histogram| {
        let buckets = histogram["buckets"].as_array().unwrap();
        let counts = buckets.iter().map(|it| it["count"].as_u64().unwrap());
        let missed = report["missed"].as_u64().unwrap_or(0);
        let counted: u64 = counts.sum();
        assert!(counted <= 39 && counted + 2 * missed >= 39, "{histogram:#}");
        let bucket = &buckets[0];
        (
            bucket["low"].as_u64().unwrap(),
            bucket["high"].as_u64().unwrap(),
        )
    });
    let widths: Vec<(u64, u64)> = widths.collect();
    assert!(
        widths[0].0.is_power_of_two() && widths[0].1 == 2 * widths[0].0 - 1,
        "{widths:?}"
    );
    assert!(widths[1].1 == widths[1].0 + 999_999, "{widths:?}");
    // The recording contains them, for people and in the page, and evaluates them again.
    let text = finish(&mut overhear(&["report", path(&out)]));
    assert!(text.stdout.contains("distances: distances"), "{text:#?}");
    let page = folder.path().join("page.html");
    let ended = finish(&mut overhear(&[
        "report",
        path(&out),
        "--html",
        path(&page),
    ]));
    assert!(ended.stderr.is_empty() || page.exists(), "{ended:#?}");
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains("distances: distances"));
    let arguments = ["report", "--json", path(&out), "--update", path(&plugin)];
    let again = finish(&mut overhear(&arguments)).stdout;
    let again: Value = serde_json::from_str(&again).unwrap();
    assert_eq!(drawn(&again), own[..1]);
}
