// SPDX-License-Identifier: MIT OR Apache-2.0
//! Resource limits (`ulimit`) in messages: the limit that caused an error of the operating system.

use rustix::process::{getrlimit, Resource};

/// Errors that a limit may cause: the error number, the limit, its name, and its option in the
/// shell.
const LIMITED: [(i32, Resource, &str, &str); 5] = [
    (libc::EFBIG, Resource::Fsize, "RLIMIT_FSIZE", "-f"),
    (libc::EMFILE, Resource::Nofile, "RLIMIT_NOFILE", "-n"),
    (libc::EAGAIN, Resource::Nproc, "RLIMIT_NPROC", "-u"),
    (libc::ENOMEM, Resource::As, "RLIMIT_AS", "-v"),
    (libc::ENOMEM, Resource::Memlock, "RLIMIT_MEMLOCK", "-l"),
];

/// Adds the limit to a message with an error that it may have caused. An unset limit causes no
/// error.
pub fn explained(message: String) -> String {
    explained_by(message, |resource| getrlimit(resource).current)
}

fn explained_by(message: String, limit: impl Fn(Resource) -> Option<u64>) -> String {
    for (errno, resource, name, option) in LIMITED {
        let written = format!("(os error {errno})");
        let Some(at) = message.find(&written) else {
            continue;
        };
        let Some(limit) = limit(resource) else {
            continue;
        };
        let (before, after) = message.split_at(at + written.len() - 1);
        return format!(
            "{before}, the limit {name} is {limit}: raise it by `ulimit {option}`{after}"
        );
    }
    message
}

#[cfg(test)]
mod tests {
    use rustix::process::Resource;

    use super::explained_by;

    #[test]
    fn limit_is_named_if_it_is_set() {
        let message = || "cannot write a: File too large (os error 27); make room".to_string();
        let set = |resource| (resource == Resource::Fsize).then_some(4096);
        assert_eq!(
            explained_by(message(), set),
            "cannot write a: File too large (os error 27, the limit RLIMIT_FSIZE is 4096: raise it by \
             `ulimit -f`); make room"
        );
        assert_eq!(explained_by(message(), |_| None), message());
        let other = "cannot write b: No space left on device (os error 28)".to_string();
        assert_eq!(explained_by(other.clone(), |_| Some(1)), other);
    }
}
