// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an ordinary user may count, and the sentences for the rest.
//!
//! A thread of this test gives up root by the system call, which changes only the thread.

use overhear_sampling::counters::{
    survey, CounterError, CounterEvent, CounterGroup, CounterOptions, CounterTarget,
};
use overhear_sampling::perf_event::perf_event_paranoid;

/// Runs a check in a thread of the user `nobody`; `None` if this user cannot become another.
fn as_ordinary_user<T: Send>(check: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let nobody: libc::uid_t = 65_534;
            // SAFETY: the call takes numbers alone; it changes this thread, which ends soon.
            let result = unsafe { libc::syscall(libc::SYS_setresuid, nobody, nobody, nobody) };
            (result == 0).then(check)
        });
        thread.join().expect("the check")
    })
}

fn open(list: &str, target: CounterTarget) -> Result<CounterGroup, CounterError> {
    let events = CounterEvent::parse_list(list)?;
    CounterGroup::open(&events, target, CounterOptions::default())
}

#[test]
fn ordinary_user_counts_what_the_kernel_permits() {
    let level = perf_event_paranoid().unwrap_or(-1);
    let opened = as_ordinary_user(|| {
        let own = CounterTarget::CallingThread;
        let mut totals = [0; 2];
        let clock = open("task-clock,page-faults", own).map(|mut group| {
            group.read(&mut totals).unwrap();
            (group.excludes_kernel(), totals[0])
        });
        let switches = open("task-clock,context-switches", own);
        let cpu = open("cpu-clock", CounterTarget::Cpu(0));
        (clock, switches.map(drop), cpu.map(drop))
    });
    let Some((clock, switches, cpu)) = opened else {
        println!("skipped: only root can become an ordinary user");
        return;
    };
    let explained = |result: Result<(), CounterError>, name: &str| match result {
        Err(error @ CounterError::NotPermitted { .. }) => {
            assert!(!error.is_usage());
            assert_eq!(error.name(), Some(name));
            let text = error.to_string();
            let level = format!("kernel.perf_event_paranoid is {level}");
            assert!(
                text.contains(&level) && text.contains("CAP_PERFMON"),
                "{text}"
            );
        }
        other => panic!("{other:?}"),
    };
    match (level, clock) {
        // Some kernels forbid it, others know no such level.
        (3.., Err(error)) => explained(Err(error), "task-clock"),
        (_, clock) => {
            let (excludes_kernel, total) = clock.expect("a user's own thread in user mode");
            assert_eq!(excludes_kernel, level >= 2);
            assert!(total > 0);
        }
    }
    match level {
        2.. => explained(switches, "context-switches"),
        _ => switches.expect("the level permits to count in the kernel"),
    }
    match level {
        1.. => explained(cpu, "cpu-clock"),
        _ => cpu.expect("the level permits to count on a CPU"),
    }
}

#[test]
fn survey_of_an_ordinary_user_has_reasons() {
    let Some(survey) = as_ordinary_user(survey) else {
        println!("skipped: only root can become an ordinary user");
        return;
    };
    let level = perf_event_paranoid().unwrap_or(-1);
    if level == 2 {
        assert!(!survey.kernel_permitted);
        let of = |name: &str| survey.counters.iter().find(|it| it.event.name() == name);
        assert!(of("task-clock").is_some_and(|it| it.result.is_ok()));
        assert!(of("context-switches").is_some_and(|it| it.result.is_err()));
    }
    assert_eq!(survey.kernel_permitted, level < 2);
}
