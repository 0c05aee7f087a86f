// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that decide what root does are used only if no other user could have chosen their content.
//! Two other users own the files that root uses.

use std::fs::{self, Permissions};
use std::os::unix::fs::{chown, symlink, PermissionsExt};
use std::path::Path;

use crate::program::program;
use crate::reactions::SLOW;
use crate::support::{finish, folder, is_root, overhear, path, plugin, Ended};

const ONE: u32 = 65_534;
const OTHER: u32 = 1_234;

fn is_skipped() -> bool {
    let skipped = !is_root();
    if skipped {
        println!("skipped: only root has privileges to lose");
    }
    skipped
}

fn own(path: &Path, uid: u32, mode: u32) {
    chown(path, Some(uid), Some(uid)).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Runs `overhear ARGUMENTS` without a caller by `sudo`.
fn run_verb(arguments: &[&str]) -> Ended {
    finish(overhear(arguments).env_remove("SUDO_UID"))
}

/// The methods by which another user could have chosen the content of a file in the inner folder;
/// each is undone.
fn each_exposure(inner: &Path, file: &Path, refused: &dyn Fn(&str)) {
    for (place, uid, mode, part) in [
        (file, ONE, 0o644, "belongs to user 65534"),
        (file, OTHER, 0o600, "belongs to user 1234"),
        (file, 0, 0o664, "can be written by other users"),
        (file, 0, 0o646, "can be written by other users"),
        (inner, ONE, 0o755, "belongs to user 65534"),
        (inner, 0, 0o777, "can be written by other users"),
        (inner, OTHER, 0o1777, "belongs to user 1234"),
    ] {
        let before = fs::metadata(place).unwrap().permissions().mode() & 0o7777;
        own(place, uid, mode);
        refused(&format!("{} {part}", path(place)));
        own(place, 0, before);
    }
}

#[test]
fn root_uses_no_configuration_of_others() {
    if is_skipped() {
        return;
    }
    let folder = folder();
    let inner = folder.path().join("inner");
    let file = inner.join("overhear.toml");
    fs::create_dir(&inner).unwrap();
    fs::write(
        &file,
        "[[constraint]]\nname = \"c\"\nmetric = \"run_delay\"\nmax = \"1h\"\n",
    )
    .unwrap();
    own(&inner, 0, 0o755);
    own(&file, 0, 0o644);
    let link = folder.path().join("link.toml");
    symlink(&file, &link).unwrap();
    for config in [&file, &link] {
        let verbs: [&[&str]; 5] = [
            &[
                "run",
                "--kernel",
                "off",
                "--config",
                path(config),
                "--",
                "true",
            ],
            &[
                "run",
                "--kernel",
                "off",
                "--check",
                path(config),
                "--",
                "true",
            ],
            &["check", "--config", path(config), "--", "true"],
            &["admit", "--config", path(config)],
            &["response-times", "--config", path(config)],
        ];
        for verb in verbs {
            each_exposure(&inner, &file, &|part| {
                run_verb(verb).has_only_message(
                    2,
                    &[
                        path(config),
                        "is not used with privileges",
                        part,
                        "type `ch",
                    ],
                );
            });
        }
    }
    let run = [
        "run",
        "--kernel",
        "off",
        "--check",
        path(&link),
        "--",
        "true",
    ];
    let good = run_verb(&run);
    assert!(!good.stderr.contains("is not used"), "{good:#?}");

    // The default name, found in the working folder.
    each_exposure(&inner, &file, &|part| {
        let ended = finish(
            overhear(&["check", "--", "true"])
                .env_remove("SUDO_UID")
                .current_dir(&inner),
        );
        ended.has_only_message(2, &["overhear.toml is not used with privileges", part]);
    });

    // Whoever called sudo may run all of this as root anyway; others may not.
    own(&file, OTHER, 0o644);
    let by = |uid: u32| finish(overhear(&run).env("SUDO_UID", uid.to_string()));
    assert!(!by(OTHER).stderr.contains("is not used"));
    by(ONE).has_only_message(2, &["belongs to user 1234"]);
}

#[test]
fn ordinary_user_uses_files_of_others() {
    let folder = folder();
    let file = folder.path().join("overhear.toml");
    fs::write(&file, "nonsense").unwrap();
    let config = ["check", "--config", path(&file), "--", "true"];
    let Some(mut command) = crate::support::as_nobody(&config) else {
        return;
    };
    own(folder.path(), OTHER, 0o755);
    own(&file, OTHER, 0o644);
    // It is read: the message is about its text.
    finish(&mut command).has_only_message(2, &["overhear.toml: line 1"]);
}

#[test]
fn root_uses_no_code_and_no_metrics_of_others() {
    if is_skipped() {
        return;
    }
    let folder = folder();
    let inner = folder.path().join("inner");
    fs::create_dir(&inner).unwrap();
    own(&inner, 0, 0o755);

    let metric = inner.join("own.metric");
    let text = include_str!("../../../overhear-metrics/metrics/blocked.metric");
    fs::write(&metric, text).unwrap();
    each_exposure(&inner, &metric, &|part| {
        run_verb(&["metrics", "--dot", "--metric", path(&metric)])
            .has_only_message(2, &["is not used", part]);
    });
    assert_eq!(
        run_verb(&["metrics", "--dot", "--metric", path(&metric)]).status,
        0
    );

    let tool = inner.join("tool");
    fs::write(&tool, "#!/bin/sh\n").unwrap();
    own(&tool, 0, 0o755);
    let file = folder.path().join("overhear.toml");
    let react = |action: &str| {
        let text = format!(
            "[[constraint]]\nname = \"c\"\nmetric = \"run_delay\"\nmax = \"1h\"\n\
             [[reaction]]\nname = \"r\"\non = [\"violated\"]\n{action}\n"
        );
        fs::write(&file, text).unwrap();
        run_verb(&[
            "run",
            "--kernel",
            "off",
            "--check",
            path(&file),
            "--",
            "true",
        ])
    };
    each_exposure(&inner, &tool, &|part| {
        react("exec = [\"inner/tool\"]")
            .has_only_message(2, &["reaction `r`", "tool is not used", part]);
    });
    assert!(!react("exec = [\"inner/tool\"]")
        .stderr
        .contains("is not used"));

    let library = inner.join("late.so");
    let source = "examples/updates/late_elements.c";
    if plugin("gcc", "-std=c11", source, &library).is_none() {
        return;
    }
    let update = format!("{}:late_elements=1", path(&library));
    let run = ["run", "--kernel", "off", "--update", &update, "--", "true"];
    each_exposure(&inner, &library, &|part| {
        run_verb(&run).has_only_message(2, &["late.so is not used", part]);
        react("function = \"inner/late.so:alarm\"")
            .has_only_message(2, &["late.so is not used", part]);
    });
    assert!(!run_verb(&run).stderr.contains("is not used"));
    // It is loaded, and searched for the function.
    react("function = \"inner/late.so:no_such_function\"")
        .has_only_message(2, &["has no function `no_such_function`"]);
}

#[test]
fn no_exec_runs_no_program_of_a_file() {
    let folder = folder();
    let file = folder.path().join("overhear.toml");
    let reactions = "
        [[reaction]]
        name = \"both\"
        on = [\"stream\"]
        once = true
        log = \"both.log\"
        exec = [\"touch\", \"ran\"]
        [[reaction]]
        name = \"only\"
        on = [\"stream\"]
        function = \"nowhere.so:alarm\"
    ";
    fs::write(&file, format!("{SLOW}{reactions}")).unwrap();
    let run = |more: &[&str]| {
        let options = ["run", "--kernel", "off", "--config", path(&file)];
        run_verb(&[&options, more, &["--", path(program()), "eager", "20"]].concat())
    };
    let ended = run(&["--no-exec"]);
    ended.has_message(
        ended.status,
        &["execution is off, which disables `exec` of reaction `both`, `function` of reaction `only`"],
    );
    assert_eq!(
        ended.stderr.matches("execution is off").count(),
        1,
        "{ended:#?}"
    );
    assert!(folder.path().join("both.log").exists());
    assert!(!folder.path().join("ran").exists());

    // Without the option the missing object is noticed, and the program runs, in the folder of the
    // file.
    run(&[]).has_only_message(2, &["reaction `only`", "nowhere.so"]);
    fs::write(
        &file,
        format!(
            "{SLOW}{}",
            reactions.replace("function = \"nowhere.so:alarm\"", "log = \"-\"")
        ),
    )
    .unwrap();
    run(&[]);
    assert!(folder.path().join("ran").exists());

    // Results of a plug-in must not be omitted without a message.
    let update = SLOW.replace("field = \"number\"", "plugin = \"late.so\"");
    fs::write(&file, update).unwrap();
    let words = ["update `numbers`", "--no-exec"];
    run(&["--no-exec"]).has_only_message(2, &words);
    run_verb(&["admit", "--no-exec", "--config", path(&file)]).has_only_message(2, &words);
    run_verb(&["top", "--once", "--no-exec", "--config", path(&file)]).has_only_message(2, &words);
}

#[test]
fn programs_of_reactions_have_the_documented_environment() {
    let folder = folder();
    let file = folder.path().join("overhear.toml");
    let reaction = "
        [[reaction]]
        name = \"look\"
        on = [\"stream\"]
        once = true
        exec = [\"sh\", \"-c\", \"pwd -P > where; env > environment\"]
    ";
    fs::write(&file, format!("{SLOW}{reaction}")).unwrap();
    let options = [
        "run",
        "--kernel",
        "off",
        "--config",
        path(&file),
        "--",
        path(program()),
        "eager",
        "20",
    ];
    let path_before = std::env::var("PATH").unwrap();
    let ended = finish(
        overhear(&options)
            .env_remove("SUDO_UID")
            .env("SECRET", "1")
            .env("BASH_ENV", "/nonexistent")
            .env("HOME", "/of/test/home")
            .env("PATH", format!("{path_before}:/of/test")),
    );
    let environment = fs::read_to_string(folder.path().join("environment"));
    let environment = environment.unwrap_or_else(|error| panic!("{error}: {ended:#?}"));
    let value = |name: &str| {
        let lines = environment.lines();
        let mut values = lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        values.next().map(str::to_string)
    };
    assert_eq!(value("SECRET"), None);
    assert_eq!(value("BASH_ENV"), None);
    assert_eq!(value("HOME").as_deref(), Some("/of/test/home"));
    assert_eq!(value("OVERHEAR_REACTION").as_deref(), Some("look"));
    let path = match is_root() {
        true => "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_string(),
        false => format!("{path_before}:/of/test"),
    };
    assert_eq!(value("PATH"), Some(path));
    let place = fs::read_to_string(folder.path().join("where")).unwrap();
    let folder = folder.path().canonicalize().unwrap();
    assert_eq!(place.trim_end(), folder.to_str().unwrap());
}
