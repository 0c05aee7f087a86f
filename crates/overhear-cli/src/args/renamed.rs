// SPDX-License-Identifier: MIT OR Apache-2.0
//! Former names of verbs and flags. They are errors; the message names the new one.

use clap::error::{ContextKind, ContextValue};

/// Former name of each renamed verb, and its new name.
const VERBS: [(&str, &str); 3] = [
    ("fit", "`fit-rate`"),
    ("rta", "`response-times`"),
    ("switch", "`enable` or `disable`"),
];

/// Former name of each renamed flag, and its new name.
const FLAGS: [(&str, &str); 5] = [
    ("--beside", "`--compare`"),
    ("--each", "`--measurements`"),
    ("--only-needed", "`--disable-unused`"),
    ("--unheard", "`--not-connected`"),
    ("--via", "`--backend`"),
];

/// The message for a command line that contains a former name; `None` if `error` has another cause.
pub(crate) fn message(error: &clap::Error) -> Option<String> {
    let renamed = |kind, names: &[(&str, &str)]| {
        let Some(ContextValue::String(used)) = error.get(kind) else {
            return None;
        };
        let found = names.iter().find(|(former, _)| former == used);
        found.map(|(former, new)| format!("`{former}` is called {new}"))
    };
    renamed(ContextKind::InvalidSubcommand, &VERBS)
        .or_else(|| renamed(ContextKind::InvalidArg, &FLAGS))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{message, FLAGS};
    use crate::args::Arguments;

    fn of(arguments: &[&str]) -> Option<String> {
        let arguments = ["overhear"].iter().chain(arguments);
        message(&Arguments::try_parse_from(arguments).unwrap_err())
    }

    #[test]
    fn former_name_is_an_error_with_the_new_name() {
        assert_eq!(
            of(&["run", "--via=bpf", "--", "true"]).unwrap(),
            "`--via` is called `--backend`"
        );
        assert_eq!(
            of(&["report", "a", "--beside", "b", "--html", "c"]).unwrap(),
            "`--beside` is called `--compare`"
        );
    }

    #[test]
    fn former_verb_is_an_error_with_the_new_name() {
        assert_eq!(
            of(&["rta", "dir"]).unwrap(),
            "`rta` is called `response-times`"
        );
        assert_eq!(
            of(&["switch", "*", "on"]).unwrap(),
            "`switch` is called `enable` or `disable`"
        );
        assert_eq!(
            of(&["fit", "a", "b"]).unwrap(),
            "`fit` is called `fit-rate`"
        );
    }

    #[test]
    fn other_mistakes_have_no_new_name() {
        assert_eq!(of(&["run", "--vias", "--", "true"]), None);
        assert_eq!(of(&["runs"]), None);
        assert_eq!(of(&["run"]), None);
    }

    #[test]
    fn arguments_of_the_program_are_its_own() {
        for (former, _) in FLAGS {
            Arguments::try_parse_from(["overhear", "run", "--", "true", former]).unwrap();
        }
    }
}
