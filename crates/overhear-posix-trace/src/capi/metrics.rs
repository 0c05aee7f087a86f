// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions of `include/overhear/metrics_trace.h`: metrics over trace streams.

use std::ffi::{c_char, c_int};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use overhear_event::{GapCause, Nanos, Timestamp};
use overhear_ffi::{release, text};
use overhear_metrics::automaton::{CMeasurement, CMeasurementGap, MeasurementList};

use super::{call, object, store};
use crate::registry::{self, Entry};
use crate::{
    ActiveStream, EventId, EventTypeSet, LogHeader, LostEvents, RequiredEvent, TraceError,
    TraceEvaluation, TraceMetric, TraceMetricError, Wait,
};

/// `oh_trace_metric`.
pub(crate) struct RawMetric(Arc<TraceMetric>);

/// Metrics over one stream; their results continue it.
struct Evaluation {
    metrics: Vec<Arc<TraceMetric>>,
    trid: u64,
    realtime_offset_ns: i64,
    /// The state of a stream that is still active.
    active: Option<Mutex<Live>>,
}

/// Metrics over an active stream.
struct Live {
    evaluation: TraceEvaluation,
    /// Lost events of the stream that were evaluated.
    lost: u64,
    /// Time of the event before a loss that has not ended.
    lost_from: Option<Timestamp>,
}

/// `oh_trace_results`.
pub(crate) struct RawResults {
    list: MeasurementList,
    evaluation: Arc<Evaluation>,
    /// Index of the metric.
    index: usize,
}

impl From<TraceMetricError> for TraceError {
    fn from(error: TraceMetricError) -> Self {
        let errno = match error {
            TraceMetricError::System(_) => libc::ENOENT,
            _ => libc::EINVAL,
        };
        Self::new(errno, error)
    }
}

fn lock(live: &Mutex<Live>) -> MutexGuard<'_, Live> {
    live.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates the metric that `make` returns, and stores it in `out`.
///
/// # Safety
/// `out` is NULL or writable.
unsafe fn create(
    name: &'static str,
    out: *mut *mut RawMetric,
    make: impl FnOnce() -> Result<TraceMetric, TraceError>,
) -> c_int {
    call(name, || {
        // SAFETY: by contract.
        unsafe { store(out, ptr::null_mut(), "out")? };
        let metric = Box::new(RawMetric(Arc::new(make()?)));
        // SAFETY: as above.
        unsafe { store(out, Box::into_raw(metric), "out") }
    })
}

fn given<T>(value: Option<T>, what: &str) -> Result<T, TraceError> {
    value.ok_or_else(|| TraceError::invalid(format!("{what} is NULL")))
}

/// # Safety
/// `out` is NULL or writable; `name` is NULL or a string.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_trace_metric_system(
    out: *mut *mut RawMetric,
    name: *const c_char,
) -> c_int {
    // SAFETY: by contract.
    let name = unsafe { text(name) };
    let make = || Ok(TraceMetric::system(&given(name, "name")?)?);
    // SAFETY: by contract.
    unsafe { create("oh_trace_metric_system", out, make) }
}

/// An event type of this process or of Linux.
fn own_event(number: u32) -> Result<RequiredEvent, TraceError> {
    let event = EventId::from_raw(number);
    let named = event.and_then(|event| Some((event, crate::event_type_name(event)?)));
    let (event, name) = named.ok_or_else(|| {
        TraceError::invalid(format!(
            "the event type {number} has no name in this process"
        ))
    })?;
    Ok(RequiredEvent::new(event, &name)?)
}

/// # Safety
/// `out` is NULL or writable; `name` is NULL or a string.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_trace_metric_user(
    out: *mut *mut RawMetric,
    name: *const c_char,
    initial: u32,
    r#final: u32,
    include_system: bool,
) -> c_int {
    // SAFETY: by contract.
    let name = unsafe { text(name) };
    let make = || {
        let (first, last) = (own_event(initial)?, own_event(r#final)?);
        let name = given(name, "name")?;
        Ok(TraceMetric::user(&name, &first, &last, include_system)?)
    };
    // SAFETY: by contract.
    unsafe { create("oh_trace_metric_user", out, make) }
}

/// # Safety
/// `out` is NULL or writable; the others are NULL or strings.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_trace_metric_user_named(
    out: *mut *mut RawMetric,
    name: *const c_char,
    initial: *const c_char,
    r#final: *const c_char,
    include_system: bool,
) -> c_int {
    // SAFETY: by contract.
    let (name, initial, last) = unsafe { (text(name), text(initial), text(r#final)) };
    let make = || {
        let (name, initial) = (given(name, "name")?, given(initial, "initial")?);
        let last = given(last, "final_")?;
        let events = [initial, last].map(|event| RequiredEvent::named(&event));
        Ok(TraceMetric::user(
            &name,
            &events[0],
            &events[1],
            include_system,
        )?)
    };
    // SAFETY: by contract.
    unsafe { create("oh_trace_metric_user_named", out, make) }
}

/// # Safety
/// `out` is NULL or writable; `written` is NULL or a string.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_trace_metric_parse(
    out: *mut *mut RawMetric,
    written: *const c_char,
) -> c_int {
    // SAFETY: by contract.
    let written = unsafe { text(written) };
    let make = || Ok(TraceMetric::parse(&given(written, "text")?)?);
    // SAFETY: by contract.
    unsafe { create("oh_trace_metric_parse", out, make) }
}

/// # Safety
/// `metric` is NULL or came from one of the functions above, and is not used any more.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_trace_metric_free(metric: *mut RawMetric) {
    // SAFETY: made by Box::into_raw, and given back by contract.
    unsafe { release(metric) };
}

/// The event types of a stream that a metric requires.
fn required(metric: &TraceMetric, entry: &Entry) -> Result<EventTypeSet, TraceError> {
    let mut set = EventTypeSet::EMPTY;
    for event in metric.events() {
        match (event, entry) {
            (RequiredEvent::Kernel(event), _) => set.insert(*event),
            (RequiredEvent::User(name), Entry::Active(stream)) => {
                let event = stream.open_user_event_type(name.as_bytes())?;
                if event == EventId::UNNAMED && name.as_str() != EventId::UNNAMED_NAME {
                    let message = format!(
                        "the traced process has TRACE_USER_EVENT_MAX event types already, and none \
                         is {name:?}"
                    );
                    return Err(TraceError::new(libc::ENOENT, message));
                }
                set.insert(event);
            }
            (RequiredEvent::User(name), Entry::Prerecorded(log)) => log.with(|log| {
                let mut names = log
                    .log()
                    .names()
                    .iter()
                    .filter(|(event, _)| event.is_user());
                let found = names.find(|(_, known)| String::from_utf8_lossy(known) == *name);
                if let Some((event, _)) = found {
                    set.insert(*event);
                }
            }),
        }
    }
    Ok(set)
}

/// # Safety
/// `metric` is NULL or came from one of the functions above; `set` is NULL or writable.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_trace_metric_events_required(
    metric: *const RawMetric,
    trid: u64,
    set: *mut EventTypeSet,
) -> c_int {
    call("oh_trace_metric_events_required", || {
        // SAFETY: by contract.
        let metric = unsafe { object(metric, "metric")? };
        let events = required(&metric.0, &registry::get(trid)?)?;
        // SAFETY: by contract.
        unsafe { store(set, events, "set") }
    })
}

impl Live {
    /// Evaluates the events that the stream has now.
    fn take_events(&mut self, stream: &ActiveStream) -> Result<(), TraceError> {
        let mut named = EventTypeSet::EMPTY;
        loop {
            let Self {
                evaluation,
                lost,
                lost_from,
            } = self;
            let is_known = stream.next_event(Wait::Try, |event| {
                if !named.contains(event.event) {
                    named.insert(event.event);
                    if let Some(name) = stream.event_name(event.event) {
                        evaluation.define(event.event, &name);
                    }
                }
                if event.event == EventId::OVERFLOW {
                    *lost_from = Some(event.time);
                }
                (event.event == EventId::RESUME)
                    .then_some(event.time)
                    .map_or_else(
                        || {
                            evaluation.event(&event);
                            None
                        },
                        Some,
                    )
            })?;
            match is_known {
                None => return Ok(()),
                Some(None) => {}
                Some(Some(resumed)) => {
                    let all = stream.lost()?;
                    let from = lost_from.take().unwrap_or(resumed);
                    let missed = all.saturating_sub(*lost);
                    *lost = all;
                    evaluation.lost(LostEvents {
                        from,
                        to: resumed,
                        missed,
                        cause: GapCause::Overwritten,
                    });
                }
            }
        }
    }
}

impl Evaluation {
    fn of_log(
        metrics: Vec<Arc<TraceMetric>>,
        trid: u64,
        log: &mut crate::LogReader,
        cost: Nanos,
    ) -> Result<(Self, Vec<MeasurementList>), TraceError> {
        let references = metrics.iter().map(|metric| &**metric);
        let mut evaluation = TraceEvaluation::new(references, log.header(), cost);
        evaluation.log(log)?;
        for metric in &metrics {
            if let Some(lack) = metric.absent_in(log.names(), evaluation.has_kernel()) {
                let message = format!(
                    "the stream has {lack}, which the metric {} requires",
                    metric.metric().name()
                );
                return Err(TraceError::new(libc::ENODATA, message));
            }
        }
        let lists = (0..metrics.len())
            .map(|index| evaluation.take(index))
            .collect();
        let offset = log.header().realtime_offset_ns;
        let of_log = Self {
            metrics,
            trid,
            realtime_offset_ns: offset,
            active: None,
        };
        Ok((of_log, lists))
    }

    fn of_stream(
        metrics: Vec<Arc<TraceMetric>>,
        trid: u64,
        stream: &ActiveStream,
        cost: Nanos,
    ) -> Self {
        let header = LogHeader {
            attributes: stream.attributes().clone(),
            pid: stream.target(),
            realtime_offset_ns: stream.realtime_offset_ns(),
            clock_resolution_ns: stream.attributes().clock_resolution_ns,
            ..LogHeader::default()
        };
        let references = metrics.iter().map(|metric| &**metric);
        let live = Live {
            evaluation: TraceEvaluation::new(references, &header, cost),
            lost: 0,
            lost_from: None,
        };
        Self {
            metrics,
            trid,
            realtime_offset_ns: header.realtime_offset_ns,
            active: Some(Mutex::new(live)),
        }
    }

    /// Whether it is the evaluation of these metrics over this stream.
    fn is_of(&self, metrics: &[Arc<TraceMetric>], trid: u64) -> bool {
        let mut pairs = self.metrics.iter().zip(metrics);
        self.trid == trid
            && self.metrics.len() == metrics.len()
            && pairs.all(|(own, other)| Arc::ptr_eq(own, other))
    }
}

/// Evaluates metrics over a stream; `known` are the results of an earlier call, or none.
fn evaluate(
    known: &mut [*mut RawResults],
    metrics: Vec<Arc<TraceMetric>>,
    trid: u64,
    cost: Nanos,
) -> Result<(), TraceError> {
    let entry = registry::get(trid)?;
    let (evaluation, lists) = match &entry {
        Entry::Prerecorded(log) => {
            let (evaluation, lists) =
                log.with(|log| Evaluation::of_log(metrics, trid, log.log(), cost))?;
            (Arc::new(evaluation), lists)
        }
        Entry::Active(stream) if stream.has_log() => {
            return Err(TraceError::invalid(
                "the events of an active stream with a log are in the log; open the log",
            ));
        }
        Entry::Active(stream) => {
            let evaluation = match continued(known, &metrics, trid)? {
                Some(evaluation) => evaluation,
                None => Arc::new(Evaluation::of_stream(metrics, trid, stream, cost)),
            };
            let mut lists = Vec::new();
            if let Some(live) = &evaluation.active {
                let mut live = lock(live);
                live.take_events(stream)?;
                lists.extend((0..evaluation.metrics.len()).map(|it| live.evaluation.take(it)));
            }
            (evaluation, lists)
        }
    };
    let is_log = matches!(entry, Entry::Prerecorded(_));
    for (index, (place, list)) in known.iter_mut().zip(lists).enumerate() {
        // SAFETY: NULL, or from an earlier call, which the caller alone uses.
        match unsafe { place.as_mut() } {
            Some(results) if !is_log => results.list.append(list),
            Some(results) => {
                *results = RawResults {
                    list,
                    evaluation: Arc::clone(&evaluation),
                    index,
                };
            }
            None => {
                let results = RawResults {
                    list,
                    evaluation: Arc::clone(&evaluation),
                    index,
                };
                *place = Box::into_raw(Box::new(results));
            }
        }
    }
    Ok(())
}

/// The evaluation that results of an earlier call continue; `None` if all are new.
fn continued(
    known: &[*mut RawResults],
    metrics: &[Arc<TraceMetric>],
    trid: u64,
) -> Result<Option<Arc<Evaluation>>, TraceError> {
    // SAFETY: NULL, or from an earlier call, which the caller alone uses.
    let all: Vec<Option<&RawResults>> = known.iter().map(|it| unsafe { it.as_ref() }).collect();
    if all.iter().all(Option::is_none) {
        return Ok(None);
    }
    let first = all.first().copied().flatten();
    let is_own = |(index, results): (usize, &Option<&RawResults>)| {
        results.is_some_and(|results| {
            let is_first = first.is_some_and(|it| Arc::ptr_eq(&it.evaluation, &results.evaluation));
            results.index == index && is_first && results.evaluation.is_of(metrics, trid)
        })
    };
    match first {
        Some(first) if all.iter().enumerate().all(is_own) => {
            Ok(Some(Arc::clone(&first.evaluation)))
        }
        _ => Err(TraceError::invalid(
            "the results are those of other metrics or of another stream",
        )),
    }
}

/// # Safety
/// `results` is NULL, or writable and NULL or from an earlier call; `metric` is NULL or came from
/// one of the functions above.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_trace_results_get(
    results: *mut *mut RawResults,
    metric: *const RawMetric,
    trid: u64,
    element_cost_ns: u64,
) -> c_int {
    // SAFETY: by contract; one result and one metric.
    unsafe {
        get(
            "oh_trace_results_get",
            results,
            &raw const metric,
            (1, trid),
            element_cost_ns,
        )
    }
}

/// # Safety
/// `results` and `metrics` are NULL, or have `count` entries as those of `oh_trace_results_get`.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_trace_results_get_several(
    results: *mut *mut RawResults,
    metrics: *const *const RawMetric,
    count: usize,
    trid: u64,
    element_cost_ns: u64,
) -> c_int {
    let name = "oh_trace_results_get_several";
    // SAFETY: by contract.
    unsafe { get(name, results, metrics, (count, trid), element_cost_ns) }
}

/// # Safety
/// As `oh_trace_results_get_several`.
unsafe fn get(
    name: &'static str,
    results: *mut *mut RawResults,
    metrics: *const *const RawMetric,
    (count, trid): (usize, u64),
    element_cost_ns: u64,
) -> c_int {
    call(name, || {
        if results.is_null() || metrics.is_null() || count == 0 {
            return Err(TraceError::invalid(
                "results or metrics are NULL, or there are none",
            ));
        }
        // SAFETY: by contract: `count` entries, which nothing else uses during the call.
        let (results, metrics) = unsafe {
            (
                std::slice::from_raw_parts_mut(results, count),
                std::slice::from_raw_parts(metrics, count),
            )
        };
        let metrics = metrics.iter().map(|metric| {
            // SAFETY: NULL, or from one of the functions above.
            let metric = unsafe { object(*metric, "a metric")? };
            Ok(Arc::clone(&metric.0))
        });
        let metrics = metrics.collect::<Result<Vec<_>, TraceError>>()?;
        evaluate(results, metrics, trid, Nanos::from_ns(element_cost_ns))
    })
}

/// # Safety
/// `results` is NULL or came from `oh_trace_results_get`, and is not used any more.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_trace_results_free(results: *mut RawResults) {
    // SAFETY: made by Box::into_raw, and given back by contract.
    unsafe { release(results) };
}

/// # Safety
/// `results` is NULL or came from `oh_trace_results_get`.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_trace_results_count(results: *const RawResults) -> usize {
    // SAFETY: by contract.
    unsafe { results.as_ref() }.map_or(0, |results| results.list.count())
}

/// Copies an item into `out`. Returns 0, or `EINVAL` if there is no such item or no `out`.
fn copy_out<T>(found: Option<T>, out: Option<&mut T>) -> c_int {
    match (found, out) {
        (Some(found), Some(out)) => {
            *out = found;
            0
        }
        _ => libc::EINVAL,
    }
}

/// # Safety
/// `results` is NULL or came from `oh_trace_results_get`; `out` is NULL or writable.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_trace_results_at(
    results: *const RawResults,
    number: usize,
    out: *mut CMeasurement,
) -> c_int {
    // SAFETY: by contract.
    let (results, out) = unsafe { (results.as_ref(), out.as_mut()) };
    copy_out(results.and_then(|it| it.list.measurement(number)), out)
}

/// # Safety
/// `results` is NULL or came from `oh_trace_results_get`.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_trace_results_realtime_offset_ns(
    results: *const RawResults,
) -> i64 {
    // SAFETY: by contract.
    unsafe { results.as_ref() }.map_or(0, |results| results.evaluation.realtime_offset_ns)
}

/// # Safety
/// `results` is NULL or came from `oh_trace_results_get`.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_trace_results_gaps(results: *const RawResults) -> usize {
    // SAFETY: by contract.
    unsafe { results.as_ref() }.map_or(0, |results| results.list.gaps())
}

/// # Safety
/// `results` is NULL or came from `oh_trace_results_get`; `out` is NULL or writable.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_trace_results_gap_at(
    results: *const RawResults,
    number: usize,
    out: *mut CMeasurementGap,
) -> c_int {
    // SAFETY: by contract.
    let (results, out) = unsafe { (results.as_ref(), out.as_mut()) };
    copy_out(results.and_then(|it| it.list.gap(number)), out)
}

/// # Safety
/// `results` is NULL or came from `oh_trace_results_get`.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_trace_results_missed(results: *const RawResults) -> u64 {
    // SAFETY: by contract.
    unsafe { results.as_ref() }.map_or(0, |results| results.list.missed())
}
