// SPDX-License-Identifier: MIT OR Apache-2.0
//! Samplers at points of threads and at ends of jobs, which the kernel takes.

use std::fs;

use overhear_kernel::{FlowPoint, JobEndPoint, KernelSampler, Probe};

use super::{JobEndRule, SamplingPoint, SamplingPolicy, SamplingRequest};
use crate::error::{ErrorKind, SessionError};

/// The function of programs that ends a job.
const JOB_END_FUNCTION: &str = "oh_job_end";
/// The library that has it, if the program has not: as programs need it, and as linkers do.
const LIBRARIES: [&str; 2] = [
    concat!("liboverhear.so.", env!("CARGO_PKG_VERSION_MAJOR")),
    "liboverhear.so",
];

/// The samplers among `requests` that have a point, for the observed `program`: a path, or a name
/// in PATH; `None` if several programs are observed.
///
/// # Errors
/// [`SessionError`] if a point cannot be found.
pub fn kernel_samplers(
    requests: &[SamplingRequest],
    program: Option<&str>,
) -> Result<Vec<KernelSampler>, SessionError> {
    let samplers = requests.iter().filter_map(|request| {
        let point = request.policy.point()?;
        Some(kernel_sampler(request, point, program))
    });
    samplers.collect()
}

fn kernel_sampler(
    request: &SamplingRequest,
    point: &SamplingPoint,
    program: Option<&str>,
) -> Result<KernelSampler, SessionError> {
    let mut sampler = KernelSampler::new(request.name.clone()).quantities(request.sample.clone());
    if let SamplingPolicy::Flow { min_interval, .. } | SamplingPolicy::Hybrid { min_interval, .. } =
        &request.policy
    {
        sampler = sampler.least_distance(*min_interval);
    }
    if let Some(period) = request.policy.period() {
        sampler = sampler.timer(period);
    }
    Ok(match point {
        SamplingPoint::Switch => sampler.at(FlowPoint::Switch),
        SamplingPoint::WakeUp => sampler.at(FlowPoint::WakeUp),
        SamplingPoint::SystemCall => sampler
            .at(FlowPoint::SystemCallEntry)
            .at(FlowPoint::SystemCallExit),
        SamplingPoint::Function(name) => {
            sampler.at(FlowPoint::Function(function(name, program, "")?))
        }
        SamplingPoint::Line { source, line } => {
            let place = format!("{source}@{line}");
            sampler.at(FlowPoint::Function(function(&place, program, "")?))
        }
        // The last sample of each thread comes anyway. With a period, threads that run rarely at
        // the timer are sampled where they leave the CPU.
        SamplingPoint::Thread => match request.policy.period() {
            Some(period) => sampler.at(FlowPoint::Switch).least_distance(period),
            None => sampler,
        },
        SamplingPoint::Job(rule) => {
            let ends = match rule {
                Some(rule) => vec![job_end(rule, program)?],
                None => ends_without_rule(program),
            };
            ends.into_iter().fold(sampler, KernelSampler::job_end)
        }
    })
}

/// Where a job ends by a rule.
fn job_end(rule: &JobEndRule, program: Option<&str>) -> Result<JobEndPoint, SessionError> {
    match rule {
        JobEndRule::Yield => Ok(JobEndPoint::Yield),
        JobEndRule::Sleep => Ok(JobEndPoint::Sleep),
        JobEndRule::Futex(place) => match address(place) {
            Some(address) => Ok(JobEndPoint::Futex(address)),
            None => Ok(JobEndPoint::FutexVariable {
                program: the_program(program, &format!("job=futex={place}"))?.to_owned(),
                variable: place.clone(),
            }),
        },
        JobEndRule::Read(place) => Ok(match place.parse() {
            Ok(descriptor) => JobEndPoint::Descriptor(descriptor),
            Err(_) => JobEndPoint::File(place.into()),
        }),
        JobEndRule::Function(name) => function(name, program, ":return").map(JobEndPoint::Function),
        JobEndRule::Metric(name) => Err(usage(format!(
            "`job=metric={name}` is not possible: only the monitor knows where a measurement ends, and it \
             learns it later than the kernel takes samples; name the place in the program, as \
             job=function=NAME"
        ))),
        JobEndRule::Call => end_call(program).map(JobEndPoint::Function).ok_or_else(|| {
            usage(format!(
                "`job=call` needs a program that calls {JOB_END_FUNCTION}(), and neither it nor liboverhear \
                 has this function; link liboverhear, or name another rule"
            ))
        }),
    }
}

/// Where jobs end if no rule is given: the thread sleeps until its next period, yields as a
/// deadline thread, or calls the function.
fn ends_without_rule(program: Option<&str>) -> Vec<JobEndPoint> {
    let mut ends = vec![JobEndPoint::Sleep, JobEndPoint::DeadlineYield];
    ends.extend(end_call(program).map(JobEndPoint::Function));
    ends
}

/// The function that ends jobs, in the program or in its library.
fn end_call(program: Option<&str>) -> Option<Probe> {
    let program_and_mapped = program.into_iter().flat_map(|program| {
        let mapped = program.strip_suffix("/exe").map(mapped_code);
        [program.to_owned()]
            .into_iter()
            .chain(mapped.unwrap_or_default())
    });
    let mut files = program_and_mapped.chain(LIBRARIES.map(str::to_owned));
    files.find_map(|file| {
        let probe = Probe::function(&format!("{file}:{JOB_END_FUNCTION}")).ok()?;
        probe.schema().is_ok().then_some(probe)
    })
}

/// The files of which a running process, by its folder in `/proc`, has code.
#[expect(clippy::disallowed_methods, reason = "of /proc")]
fn mapped_code(process: &str) -> Vec<String> {
    let maps = fs::read_to_string(format!("{process}/maps")).unwrap_or_default();
    let code = maps.lines().filter(|line| line.contains(" r-xp "));
    let files = code.filter_map(|line| Some(line[line.find('/')?..].to_owned()));
    let mut files: Vec<String> = files.collect();
    files.dedup();
    files
}

/// A function as probes name it; without a file it is one of the program.
fn function(name: &str, program: Option<&str>, suffix: &str) -> Result<Probe, SessionError> {
    let suffix = if name.ends_with(suffix) { "" } else { suffix };
    let has_file = name.replace("::", "").contains(':');
    let named = match has_file {
        true => format!("{name}{suffix}"),
        false => format!(
            "{}:{name}{suffix}",
            the_program(program, &format!("function={name}"))?
        ),
    };
    Probe::function(&named).map_err(|error| usage(error.to_string()))
}

fn the_program<'a>(program: Option<&'a str>, what: &str) -> Result<&'a str, SessionError> {
    program.ok_or_else(|| {
        usage(format!(
            "`{what}` does not say in which program, because several are observed; write FILE:NAME, or an \
             address"
        ))
    })
}

fn address(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn usage(message: String) -> SessionError {
    SessionError::new(ErrorKind::Usage, message)
}

#[cfg(test)]
mod tests {
    use overhear_event::Nanos;
    use overhear_kernel::{FlowPoint, JobEndPoint, KernelSampler, Probe};

    use super::{kernel_samplers, SamplingRequest};

    fn request(every: Option<&str>, per: &str) -> SamplingRequest {
        SamplingRequest::parse(&["cpu-time"], every, Some(per), None).expect("valid")
    }

    fn sampler(every: Option<&str>, per: &str) -> KernelSampler {
        let samplers = kernel_samplers(&[request(every, per)], Some("/bin/app"));
        samplers.expect("possible").pop().expect("one")
    }

    fn empty() -> KernelSampler {
        KernelSampler::new("samples").quantities(["cpu-time"])
    }

    #[test]
    fn points_and_rules_are_those_of_the_kernel() {
        let at = |point| empty().at(point);
        assert_eq!(sampler(None, "switch"), at(FlowPoint::Switch));
        let period = Nanos::from_ms(10);
        let thread = at(FlowPoint::Switch).least_distance(period).timer(period);
        assert_eq!(sampler(Some("10ms"), "thread"), thread);
        assert_eq!(sampler(None, "thread"), empty());
        let ends = |end| empty().job_end(end);
        assert_eq!(sampler(None, "job=yield"), ends(JobEndPoint::Yield));
        assert_eq!(
            sampler(None, "job=read=7"),
            ends(JobEndPoint::Descriptor(7))
        );
        assert_eq!(
            sampler(None, "job=read=/tmp/in"),
            ends(JobEndPoint::File("/tmp/in".into()))
        );
        assert_eq!(
            sampler(None, "job=futex=0x10"),
            ends(JobEndPoint::Futex(16))
        );
        let variable = JobEndPoint::FutexVariable {
            program: "/bin/app".to_owned(),
            variable: "queue_lock".to_owned(),
        };
        assert_eq!(sampler(None, "job=futex=queue_lock"), ends(variable));
        for name in ["step", "/bin/app:step", "/bin/app:step:return"] {
            let step = Probe::function("/bin/app:step:return").expect("valid");
            let rule = format!("job=function={name}");
            assert_eq!(
                sampler(None, &rule),
                ends(JobEndPoint::Function(step)),
                "{name}"
            );
        }
        let work = Probe::function("/bin/app:shop::work").expect("valid");
        let named = sampler(None, "function=shop::work");
        assert_eq!(named, at(FlowPoint::Function(work)));
        let without = empty()
            .job_end(JobEndPoint::Sleep)
            .job_end(JobEndPoint::DeadlineYield);
        // The loader's folders may have the library.
        let without = match super::end_call(Some("/bin/app")) {
            Some(call) => without.job_end(JobEndPoint::Function(call)),
            None => without,
        };
        assert_eq!(sampler(None, "job"), without);
    }

    #[test]
    fn impossible_points_are_sentences() {
        let error = |per: &str, program| {
            let samplers = kernel_samplers(&[request(None, per)], program);
            samplers.expect_err("impossible").to_string()
        };
        assert!(error("job=metric=latency", Some("a")).contains("job=metric=latency"));
        assert!(error("job=futex=lock", None).contains("several are observed"));
        assert!(error("function=step", None).contains("write FILE:NAME"));
    }

    #[test]
    fn code_of_running_processes_is_found() {
        let own = super::mapped_code("/proc/self");
        let exe = std::env::current_exe().expect("it runs");
        assert!(
            own.iter().any(|file| exe == std::path::Path::new(file)),
            "{own:?}"
        );
    }

    #[test]
    fn periodic_samplers_are_not_of_the_kernel() {
        let request = SamplingRequest::parse(&["cpu-time"], Some("1ms"), None, None);
        let samplers = kernel_samplers(&[request.expect("valid")], None);
        assert_eq!(samplers.expect("possible"), []);
    }
}
