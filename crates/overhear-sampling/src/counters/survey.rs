// SPDX-License-Identifier: MIT OR Apache-2.0
//! The counters of this machine.

use super::{
    CounterError, CounterEvent, CounterGroup, CounterOptions, CounterTarget, EventClass,
    ThreadCounters, MAX_COUNTERS,
};

/// A counter with a name, and whether it can be used here.
#[derive(Clone, Debug)]
pub struct SurveyedCounter {
    /// The event.
    pub event: CounterEvent,
    /// Whether it was opened and read; otherwise the reason.
    pub result: Result<(), CounterError>,
}

/// What `overhear doctor --counters` shows.
#[derive(Clone, Debug)]
pub struct CounterSurvey {
    /// All counters with names, in the order of their classes.
    pub counters: Vec<SurveyedCounter>,
    /// The number of hardware events of the list that one group can have at present, each event
    /// once; `None` without hardware counters.
    pub fit: Option<usize>,
    /// Whether the group of these events is read without a system call; `None` without hardware
    /// counters.
    pub rdpmc: Option<bool>,
    /// Whether counting in the kernel is permitted for the calling thread.
    pub kernel_permitted: bool,
}

/// Opens every named counter for the calling thread, one after the other.
#[must_use]
pub fn survey() -> CounterSurvey {
    let mut counters: Vec<SurveyedCounter> = Vec::new();
    for event in CounterEvent::all_named() {
        let opened = open(std::slice::from_ref(&event));
        counters.push(SurveyedCounter {
            result: opened.map(|_| ()),
            event,
        });
    }
    let of_cpu = |class| matches!(class, EventClass::Hardware | EventClass::Cache);
    let working: Vec<CounterEvent> = counters
        .iter()
        .filter(|it| it.result.is_ok() && of_cpu(it.event.class()))
        .map(|it| it.event.clone())
        .take(MAX_COUNTERS)
        .collect();
    let fit = (!working.is_empty()).then(|| match open(&working) {
        Ok(_) => working.len(),
        Err(CounterError::TooMany { fit, .. } | CounterError::Taken { fit, .. }) => fit,
        Err(_) => 0,
    });
    let group =
        fit.and_then(|fit| ThreadCounters::open(&working[..fit], CounterOptions::default()).ok());
    let task_clock = open(
        &CounterEvent::parse("task-clock")
            .into_iter()
            .collect::<Vec<_>>(),
    );
    CounterSurvey {
        fit,
        rdpmc: group.map(|group| group.uses_rdpmc()),
        kernel_permitted: task_clock.is_ok_and(|group| !group.excludes_kernel()),
        counters,
    }
}

fn open(events: &[CounterEvent]) -> Result<CounterGroup, CounterError> {
    let target = CounterTarget::CallingThread;
    CounterGroup::open(events, target, CounterOptions::default())
}

#[cfg(test)]
mod tests {
    use super::survey;
    use crate::counters::EventClass;

    #[test]
    fn software_counters_work_and_others_have_a_reason() {
        let survey = survey();
        for counter in &survey.counters {
            let (name, class) = (counter.event.name(), counter.event.class());
            let common = ["task-clock", "cpu-clock", "page-faults"].contains(&name);
            match &counter.result {
                Err(error) if class == EventClass::Software && common => panic!("{error}"),
                Err(error) => assert!(error.to_string().contains(name), "{error}"),
                Ok(()) => {}
            }
        }
        let hardware = survey.counters.iter();
        let hardware = hardware.filter(|it| it.event.class() == EventClass::Hardware);
        let works = hardware.clone().any(|it| it.result.is_ok());
        assert_eq!(survey.fit.is_some_and(|fit| fit > 0), works);
        assert_eq!(survey.rdpmc.is_some(), works);
    }
}
